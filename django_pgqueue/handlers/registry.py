"""The @consumer decorator, and the registry of handlers."""

from __future__ import annotations

import datetime as dt
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import reduce
from typing import Any, NoReturn, cast

from asgiref.sync import iscoroutinefunction
from django.utils.module_loading import autodiscover_modules

from django_pgqueue.acks import AckPolicy, AckPolicyName
from django_pgqueue.engine import arguments
from django_pgqueue.engine.habits import CONSUMER, unexpected
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.handlers import bodies
from django_pgqueue.handlers.decorator import Batch, Decorator
from django_pgqueue.retries import Exponential, RetryStrategy

__all__ = ["consumer"]

#: Ten attempts, with waits of at most nine minutes in total; then the message fails.
DEFAULT_RETRY = Exponential(first=1, longest=300, max_attempts=10, jitter=True)

#: The options that are durations, each with its minimum in seconds.
_DURATIONS = {
    "visibility_timeout": arguments.POSITIVE,
    "timeout": arguments.POSITIVE,
    "min_fetch_interval": 0,
    "max_fetch_interval": 0,
}


@dataclass(frozen=True)
class Handler:
    """A function that consumes a queue, with the options of :func:`consumer`.

    :func:`consumer` repeats the defaults, because editors show its signature as written.
    """

    queue: str
    function: Callable[..., Any]
    using: str | None = None
    ack_policy: AckPolicy = AckPolicy.NACK_ON_ERROR
    retry: RetryStrategy = DEFAULT_RETRY
    max_deliveries: int | None = None
    visibility_timeout: float | None = None
    timeout: float | None = None
    batch: bool = False
    batch_size: int = 100
    locked: bool = False
    keep_result: bool = False
    max_workers: int | None = None
    fetch_batch_size: int = 500
    overfetch_factor: float = 1.5
    min_fetch_interval: float = 0.0
    max_fetch_interval: float = 1.0
    middleware: Sequence[Callable[..., Any]] = ()
    call: bodies.Call = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        arguments.queue_name(self.queue)
        try:
            object.__setattr__(self, "ack_policy", AckPolicy(self.ack_policy))
        except ValueError as error:
            names = ", ".join(policy.name for policy in AckPolicy)
            raise InvalidArgument(f"ack_policy must be one of {names}: {error}") from error
        for name, least in _DURATIONS.items():
            if (value := getattr(self, name)) is not None:
                seconds = arguments.duration(value, name, least=least).total_seconds()
                object.__setattr__(self, name, seconds)
        if not callable(getattr(self.retry, "delay", None)):
            raise InvalidArgument(
                f"retry must be a strategy of django_pgqueue.retries, such as NoRetry(), or an "
                f"object with a method delay(attempt, elapsed), not {self.retry!r}"
            )
        for name in ("max_deliveries", "max_workers", "batch_size", "fetch_batch_size"):
            value = getattr(self, name)
            if value is not None:
                arguments.count(value, name)
        listed = isinstance(self.middleware, (list, tuple))
        if not listed or not all(map(callable, self.middleware)):
            raise InvalidArgument(
                f"middleware must be a list of functions, not {self.middleware!r}: write "
                f"middleware=[measure], and import the functions instead of naming their paths"
            )
        if self.overfetch_factor < 1:
            raise InvalidArgument("overfetch_factor must be at least 1")
        if isinstance(self.function, type):
            raise InvalidArgument(
                f"{self.label} is a class, so a call would only make an instance of it: pass an "
                f"instance that has a __call__, or a function"
            )
        if any(map(_is_generator, _functions(self.function))):
            raise InvalidArgument(
                f"{self.label} has a yield, so a call would only make a generator, and run none of "
                f"its lines: return a value, or nothing"
            )
        if self.is_async and (self.locked or self.ack_policy is AckPolicy.TRANSACTIONAL):
            raise InvalidArgument(
                f"{self.label} is async, and Django has no async transactions: make it a plain "
                f"function, or use neither locked nor TRANSACTIONAL"
            )
        if self.locked and self.batch:
            raise InvalidArgument(
                f"{self.label}: locked handles one message at a time: leave out locked or batch"
            )
        if self.locked and self.ack_policy is AckPolicy.ACK_FIRST:
            raise InvalidArgument(
                f"{self.label}: locked settles the message in the handler's transaction, and "
                f"ACK_FIRST settles it before: leave out locked, or choose another ack_policy"
            )
        if self.keep_result and self.ack_policy is AckPolicy.ACK_FIRST:
            raise InvalidArgument(
                f"{self.label}: keep_result has nothing to keep with ACK_FIRST, which archives the "
                f"message before the handler runs: choose another ack_policy"
            )
        object.__setattr__(self, "call", bodies.Call(self.function, batch=self.batch))

    @property
    def is_async(self) -> bool:
        return any(map(iscoroutinefunction, _functions(self.function)))

    @property
    def workers(self) -> int:
        """The number of concurrent runs in a process; ``runconsumer --workers`` overrides it."""
        return self.max_workers or (100 if self.is_async else 4)

    @property
    def label(self) -> str:
        return bodies.name_of(self.function)

    @property
    def queue_made_by(self) -> str | None:
        """The command that makes the queue, or None."""
        return None

    @property
    def run_size(self) -> int:
        """The maximum number of messages of one run."""
        return self.batch_size if self.batch else 1

    def wrapped(self) -> Callable[[Any, Any], Any]:
        """Return the function, wrapped in the middleware."""
        return reduce(lambda inner, around: around(inner), reversed(self.middleware), self.call)

    @property
    def has_timeouts(self) -> bool:
        """Whether a run can have a timeout."""
        return self.timeout is not None

    def timeout_of(self, message: Any) -> float | None:
        """Return the timeout of a run on this message in seconds, or None."""
        return self.timeout

    def retry_of(self, message: Any) -> RetryStrategy:
        """Return the strategy that decides when this message is tried again."""
        return self.retry

    def set_tasks(self, messages: Sequence[Any]) -> None:
        """Do nothing. Handlers of task backends set each message's ``task`` here."""

    def result_of(self, returned: Any) -> str | None:
        """Convert a return value to JSON text for the archive; None without ``keep_result``.

        Raises InvalidMessage if the value is not JSON.
        """
        return arguments.json_text(returned, "result") if self.keep_result else None


def _functions(function: Callable[..., Any]) -> tuple[Any, Any]:
    """The function, and what a call of it runs if it is an object with ``__call__``."""
    return function, type(function).__call__


def _is_generator(function: Any) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


_handlers: dict[tuple[str, str | None], Handler] = {}
_discoverers: list[Callable[[], None]] = []


def consumer(
    queue: str,
    *,
    using: str | None = None,
    ack_policy: AckPolicy | AckPolicyName = AckPolicy.NACK_ON_ERROR,
    retry: RetryStrategy = Exponential(first=1, longest=300, max_attempts=10, jitter=True),  # noqa: B008
    max_deliveries: int | None = None,
    visibility_timeout: float | dt.timedelta | None = None,
    timeout: float | dt.timedelta | None = None,
    batch: Batch = False,  # type: ignore[assignment]
    batch_size: int = 100,
    locked: bool = False,
    keep_result: bool = False,
    max_workers: int | None = None,
    fetch_batch_size: int = 500,
    overfetch_factor: float = 1.5,
    min_fetch_interval: float | dt.timedelta = 0.0,
    max_fetch_interval: float | dt.timedelta = 1.0,
    middleware: Sequence[Callable[..., Any]] = (),
    **unknown: NoReturn,
) -> Decorator[Batch]:
    """Make a function the consumer of a queue: ``manage.py runconsumer`` runs it.

    The function takes a message. If its parameter is annotated with a dataclass, TypedDict or
    pydantic model, or with ``dict``, ``list`` or ``Any``, it takes the body, validated and
    converted to that type. Further parameters named ``message`` and ``context`` are filled in.
    Tests can call the function as it is.

    Options, each with its unit and default:

    ``ack_policy`` (NACK_ON_ERROR)
        an :class:`~django_pgqueue.acks.AckPolicy` or its name
    ``retry`` (exponential with jitter, ten attempts)
        a strategy of :mod:`django_pgqueue.retries`
    ``max_deliveries`` (the queue's, which is 20 by default)
        deliveries after which the message fails without another run
    ``visibility_timeout`` (the queue's)
        seconds of a lease; the consumer extends it while the handler runs
    ``timeout`` (None)
        seconds after which a run is interrupted and counts as failed
    ``batch`` (False), ``batch_size`` (100)
        the function takes a list of messages, and may return a list with an outcome for each
    ``locked`` (False)
        read, process and archive in one transaction that locks the row
    ``keep_result`` (False)
        archive what the function returns, for :meth:`BoundQueue.result`; a batch function returns
        a list with a result for each message
    ``max_workers`` (4; 100 for an async function)
        concurrent runs in a process
    ``fetch_batch_size`` (500), ``overfetch_factor`` (1.5)
        messages per read, and the buffer's capacity as a multiple of that number
    ``min_fetch_interval`` (0), ``max_fetch_interval`` (1)
        seconds between two reads: the minimum, after a full read; the maximum, after an empty one
    ``middleware`` (none)
        callables that wrap the handler, outermost first, in the form of Django's middleware
    ``using`` (``PGQUEUE["DATABASE"]``, or the routers' choice)
        the alias of the database

    ::

        @consumer("orders", retry=Exponential(first=1, max_attempts=8), max_deliveries=20)
        def charge(message):
            ...

    Raises InvalidArgument for an invalid value, a missing queue name, an annotation that is no type
    of messages or bodies, and a queue that already has a consumer.
    """
    options: dict[str, Any] = dict(locals())  # all parameters are fields of Handler
    if options.pop("unknown"):
        raise unexpected(consumer, unknown, CONSUMER)
    if callable(queue):
        name = getattr(queue, "__name__", repr(queue))
        raise InvalidArgument(
            f'@consumer needs the name of a queue: write @consumer("orders") above {name}'
        )

    def decorate(function: Any) -> Any:
        register(Handler(function=function, **options))
        return function

    return cast("Decorator[Batch]", decorate)


def register(handler: Handler) -> None:
    """Add a handler to the registry. Raises InvalidArgument if its queue already has another."""
    key = (handler.queue.lower(), handler.using)
    known = _handlers.get(key)
    # The same function is no conflict: its module was imported twice.
    if known is not None and known.label != handler.label:
        raise InvalidArgument(
            f"queue {handler.queue!r} is already consumed by {known.label}, so {handler.label} "
            f"cannot consume it: a queue has one consumer. Give the second one its own queue"
        )
    _handlers[key] = handler


def discover_with(discover: Callable[[], None]) -> None:
    """Make :func:`autodiscover` call ``discover``, which registers more handlers."""
    if discover not in _discoverers:
        _discoverers.append(discover)


def autodiscover() -> None:
    """Import ``consumers.py`` of every installed app, and register the handlers of tasks.

    Raises InvalidArgument for a handler whose type of bodies uses a name that is not defined.
    """
    autodiscover_modules("consumers")
    for discover in _discoverers:
        discover()
    for handler in _handlers.values():
        handler.call.resolve()


def handlers(queues: Sequence[str] = (), leave_out: Sequence[str] = ()) -> list[Handler]:
    """Return the registered handlers of these queues, or of all, without those of ``leave_out``.

    Both are names, or patterns such as ``"mail-*"``, in which ``*``, ``?`` and ``[ab]`` stand for
    characters.

    Raises InvalidArgument for a name or pattern without a handler, and if none is left.
    """
    found = _matching(queues) if queues else dict(_handlers)
    for key in _matching(leave_out):
        found.pop(key, None)
    if leave_out and not found:
        raise InvalidArgument(
            f"no queue is left without {', '.join(leave_out)}. Queues with a consumer: {_known()}"
        )
    return list(found.values())


def _matching(patterns: Sequence[str]) -> dict[tuple[str, str | None], Handler]:
    """Return the handlers whose queues match, in the order of the patterns."""
    found: dict[tuple[str, str | None], Handler] = {}
    for pattern in patterns:
        of_pattern = {
            key: handler
            for key, handler in _handlers.items()
            if fnmatchcase(key[0], pattern.lower())
        }
        if not of_pattern:
            missing = (
                f"no queue with a consumer matches {pattern!r}"
                if set(pattern) & set("*?[")
                else f"there is no @consumer({pattern.lower()!r}) in any consumers.py of the "
                f"installed apps"
            )
            raise InvalidArgument(f"{missing}. Queues with a consumer: {_known()}")
        found |= of_pattern
    return found


def _known() -> str:
    return ", ".join(sorted({queue for queue, _using in _handlers})) or "none"


def handler_of(function: Callable[..., Any]) -> Handler:
    """Return the handler of a decorated function. Raises LookupError."""
    for handler in _handlers.values():
        if handler.function is function:
            return handler
    raise LookupError(f"{function!r} is not decorated with @consumer")
