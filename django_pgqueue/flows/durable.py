"""The methods of a message with which its handler keeps something for the next delivery."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections, transaction

from django_pgqueue.acks import Waiting
from django_pgqueue.database.runner import open_blocks
from django_pgqueue.engine.open_queue import OpenQueue
from django_pgqueue.errors import InvalidArgument, StepRefused, TimedOut
from django_pgqueue.flows import steps, waits
from django_pgqueue.flows.steps import Steps
from django_pgqueue.flows.waits import Span
from django_pgqueue.types import Receipt

#: What the names of waits begin with. The policy in ddl/flows.sql has the first, too.
_WAIT_FOR, _SLEEP = "wait_for ", "sleep "


class Durable:
    """Steps, which are not repeated, notes, which tell how far a handler is, and waits."""

    if TYPE_CHECKING:
        id: Any
        group_key: Any

        @property
        def receipt(self) -> Receipt: ...
        @property
        def queue_name(self) -> str: ...
        @property
        def _leased_from(self) -> OpenQueue: ...

    #: What this delivery knows of the message's steps. Set by the first step or note.
    _steps: Steps | None = None
    #: How many transactions were open when the handler started, by database. Set by drain().
    _open_before: Mapping[str, int] = MappingProxyType({})

    def step(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        atomic: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Call a function once, and store what it returns for all later deliveries.

        If the handler fails or its process dies after the step, the next delivery gets the stored
        value, and the function is not called again. If it dies within the step, the function is
        called again: give services outside the database the key :meth:`step_key`. With ``atomic``
        the function's writes and the value are one commit, so neither is there twice.

        Returns the value as JSON gives it back, in the first delivery too: a tuple is a list.

        Arguments:
            name: names the step, once in a delivery: 1 to 255 characters.
            function: is called with the other arguments. It returns JSON of at most 1 MiB.
            atomic: runs the function in a transaction of the queue's database.

        ::

            @consumer("orders")
            def handle(message):
                receipt = message.step("charge", charge_card, message.body["order"])
                message.step("mail", send_mail, receipt)

        Raises InvalidArgument for a name that this delivery has used before; InvalidMessage for a
        value that is not JSON; LeaseLost if the message was read again, so a late worker stores
        nothing; StepRefused inside a transaction, which may roll the value back; NeverRead.
        """
        _refuse(name, function)
        if iscoroutinefunction(function):
            raise InvalidArgument(_AWAIT.format(name=name))
        return self._in_sync_code("step", lambda: self._step(name, function, args, kwargs, atomic))

    async def astep(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        atomic: bool = False,
        **kwargs: Any,
    ) -> Any:
        """The async twin of :meth:`step`. The function may be async, unless ``atomic``."""
        _refuse(name, function)
        if atomic and iscoroutinefunction(function):
            raise InvalidArgument(
                f"step {name!r} is atomic, and its function is async: Django's transactions need "
                f"a plain function"
            )
        if not iscoroutinefunction(function):
            return await sync_to_async(self._step)(name, function, args, kwargs, atomic)
        done, value = await sync_to_async(self._begin)(name)
        if done:
            return value
        with self._durable().under_way(name):
            value = await function(*args, **kwargs)
            stored, _ = await sync_to_async(self._durable().store)(name, value)
            return stored

    def step_key(self, name: str) -> str:
        """Return a key that names this step of this message in every delivery.

        A service that takes an idempotency key does its work once if it gets the same key twice.

        >>> message.step_key("charge")
        'orders-7-charge'
        """
        return f"{self.queue_name}-{self.id}-{steps.step_name(name)}"

    def wait_for(self, key: str, *, timeout: Span) -> Any:
        """Wait for a signal, without a worker, a lease or a slot. Returns the signal's value.

        The handler ends here with the exception :class:`~django_pgqueue.acks.Waiting`, and begins
        again when ``signal()`` sends the key, or after the timeout. Then this line returns the
        value, or raises TimedOut, in this and every later delivery. So what the handler does before
        should be steps. A signal that was sent before counts, while it is kept.

        Arguments:
            key: names the event, once in a delivery: 1 to 200 characters, such as ``"paid:7"``.
            timeout: seconds, a timedelta, or text such as ``"3d"``; from the first delivery that
                comes to this line.

        ::

            try:
                receipt = message.wait_for(f"paid:{order}", timeout="3d")
            except TimedOut:
                message.step("cancel", cancel_order, order)

        Raises TimedOut; InvalidArgument, also for a message of a FIFO group, whose other messages
        would wait too; LeaseLost; StepRefused inside a transaction; NeverRead.
        """
        return self._in_sync_code("wait_for", lambda: self._wait_for(key, timeout))

    async def await_for(self, key: str, *, timeout: Span) -> Any:
        """The async twin of :meth:`wait_for`."""
        return await sync_to_async(self._wait_for)(key, timeout)

    def sleep(self, seconds: Span, *, name: str = "sleep") -> None:
        """Wait for a time, as :meth:`wait_for` does for a signal.

        Arguments:
            seconds: seconds, a timedelta, or text such as ``"1d"``.
            name: tells several sleeps of a handler apart.

        Raises as :meth:`wait_for`.
        """
        self._in_sync_code("sleep", lambda: self._sleep(seconds, name))

    async def asleep(self, seconds: Span, *, name: str = "sleep") -> None:
        """The async twin of :meth:`sleep`."""
        await sync_to_async(self._sleep)(seconds, name)

    def note(self, value: Any, *, flush: bool = False) -> None:
        """Note how far the handler is: for a page that shows it, and to go on from there.

        A note takes the place of the last one. ``queue("imports").note(id)`` and the admin show it,
        and :meth:`last_note` returns it in a later delivery.

        Arguments:
            value: JSON of at most 16 KiB.
            flush: stores the note in any case. Otherwise a note within a second of the last stored
                one is left out, and not stored later.

        ::

            for number, row in enumerate(rows):
                save(row)
                message.note({"row": number})

        Raises InvalidMessage for a value that is not JSON; LeaseLost if the message was read again:
        the caller should stop then; StepRefused inside a transaction; NeverRead.
        """
        self._in_sync_code("note", lambda: self._note(value, flush))

    async def anote(self, value: Any, *, flush: bool = False) -> None:
        """The async twin of :meth:`note`."""
        await sync_to_async(self._note)(value, flush)

    def last_note(self) -> Any:
        """Return what this or an earlier delivery of the message stored last. None without a note.

        ::

            start = (message.last_note() or {"row": 0})["row"]
        """
        return self._in_sync_code("last_note", self._last_note)

    async def alast_note(self) -> Any:
        """The async twin of :meth:`last_note`."""
        return await sync_to_async(self._last_note)()

    def _step(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        atomic: bool,
    ) -> Any:
        done, value = self._begin(name)
        if done:
            return value
        durable = self._durable()
        with durable.under_way(name):
            if atomic:
                alias = self._leased_from.alias
                with transaction.atomic(using=alias):
                    stored, is_first = durable.store(name, _called(name, function, args, kwargs))
                    if not is_first:  # nor are these the first writes
                        transaction.set_rollback(True, using=alias)
                    return stored
            value = _called(name, function, args, kwargs)
            self._refuse_transaction(f"step {name!r}")  # which the function left open
            stored, _ = durable.store(name, value)
            return stored

    def _begin(self, name: str) -> tuple[bool, Any]:
        durable = self._durable()
        self._refuse_transaction(f"step {name!r}")
        return durable.begin(name)

    def _wait_for(self, key: str, timeout: Span) -> Any:
        return self._wait(f"{_WAIT_FOR}{waits.signal_key(key)}", key, timeout)

    def _sleep(self, length: Span, name: str) -> None:
        self._wait(f"{_SLEEP}{waits.signal_key(name, 'the name of a sleep')}", None, length)

    def _wait(self, name: str, key: str | None, timeout: Span) -> Any:
        durable = self._durable()
        self._refuse_transaction("a wait")
        if self.group_key is not None:
            raise InvalidArgument(
                f"message {self.id} is in group {self.group_key!r}, whose other messages would "
                f"wait with it: send to a queue without groups what waits"
            )
        outcome = waits.wait(durable, name, key, timeout)
        if outcome is None:
            raise Waiting(self)
        if key is not None and "signal" not in outcome:
            raise TimedOut(key)
        return outcome.get("signal")

    def _note(self, value: Any, flush: bool) -> None:
        durable = self._durable()
        self._refuse_transaction("note")
        durable.note(value, flush)

    def _last_note(self) -> Any:
        return steps.note_of(self._leased_from, self.id)

    def _durable(self) -> Steps:
        if self._steps is None:
            self._steps = Steps(self._leased_from, self.receipt)
        return self._steps

    def _refuse_transaction(self, what: str) -> None:
        """Raise StepRefused in a transaction that the handler, or its ack policy, has opened."""
        connection = connections[self._leased_from.alias]
        is_manual = not (connection.in_atomic_block or connection.get_autocommit())
        if is_manual or any(
            number > self._open_before.get(alias, 0) for alias, number in open_in_thread().items()
        ):
            raise StepRefused(what, self.id)

    def _in_sync_code(self, name: str, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except SynchronousOnlyOperation as error:
            raise SynchronousOnlyOperation(
                f"message.{name}() runs a query, which Django refuses in async code: await "
                f"message.a{name}(...)"
            ) from error


def open_in_thread() -> dict[str, int]:
    """Return how many transactions and savepoints are open in this thread, by their database."""
    return {each.alias: open_blocks(each) for each in connections.all(initialized_only=True)}


def _refuse(name: object, function: object) -> None:
    """Raise InvalidArgument for the name of a wait, and for what is no function."""
    if isinstance(name, str) and name.startswith((_WAIT_FOR, _SLEEP)):
        raise InvalidArgument(f"step {name!r} has the name of a wait: choose another")
    if not callable(function):
        raise InvalidArgument(
            f"step {name!r} takes a function and its arguments, not {function!r}: pass "
            f"message.step({name!r}, charge, order), and not charge(order), so that a later "
            f"delivery need not call it"
        )


def _called(
    name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    value = function(*args, **kwargs)
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise InvalidArgument(_AWAIT.format(name=name))
    return value


_AWAIT = "the function of step {name!r} is async: await message.astep({name!r}, ...)"
