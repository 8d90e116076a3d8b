"""How a function of the engine becomes a method: of a queue, of the manager, and an async twin.

:func:`operation` and :func:`on_database` take a function and give two attributes of a class: the
method and its async twin. The signature and docstring are the function's own, for ``help()`` and
the reference; type checkers find them in ``methods.pyi``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from types import FunctionType, MethodType
from typing import Any

from asgiref.sync import sync_to_async
from django.db import DatabaseError, connections, models

from django_pgqueue.engine.session import OpenQueue, is_gone
from django_pgqueue.errors import QueueNotFound
from django_pgqueue.models.queue import Queue

__all__ = ["Method", "on_database", "operation"]

_QUEUE = inspect.Parameter(
    "queue", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation="str | Queue"
)
#: Names of other libraries for arguments of ours.
_ELSEWHERE = {"countdown": "delay", "eta": "delay"}

_SELF = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)


class Method:
    """A method in two forms: of an object that is one queue, and of a manager, which is told it."""

    def __init__(self, one: Callable[..., Any], many: Callable[..., Any]) -> None:
        self._of_one, self._of_many = one, many

    def __set_name__(self, owner: type, name: str) -> None:
        for function in (self._of_one, self._of_many):
            function.__name__ = name
            function.__qualname__ = f"{owner.__qualname__}.{name}"
            function.__module__ = owner.__module__

    def __get__(self, instance: Any, owner: type) -> Any:
        function = self._of_many if issubclass(owner, models.Manager) else self._of_one
        return function if instance is None else MethodType(function, instance)


def operation(
    act: Callable[..., Any],
    then: Callable[[Any, OpenQueue, Any], Any] | None = None,
    *,
    returns: str | None = None,
) -> tuple[Method, Method]:
    """A method, and its async twin, that calls a function with an open queue.

    ``then`` makes the result, of the type that ``returns`` names, from the object that has the
    method, the queue and what the function returns. A queue that was dropped and made again
    elsewhere is opened once more, unless that is too late inside a broken transaction.
    """

    signature = inspect.signature(act)

    def run(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        queue, args = self._queue(args, kwargs)
        opened = Queue.objects.resolve(queue, self._using).opened
        try:
            result = act(opened, *args, **kwargs)
        except TypeError:
            _refuse_unknown(signature, act.__name__, kwargs)
            raise
        except DatabaseError as error:
            opened = _reopened(opened, error)
            result = act(opened, *args, **kwargs)
        return result if then is None else then(self, opened, result)

    own = list(signature.parameters.values())[1:]
    shown = signature.replace(return_annotation=returns) if returns else signature
    one = _documented(run, act, shown, [_SELF, *own])
    many = _documented(run, act, shown, [_SELF, _QUEUE, *own])
    return Method(one, many), Method(_asynchronous(one), _asynchronous(many))


def on_database(act: Callable[..., Any]) -> tuple[Method, Method]:
    """A method, and its async twin, that calls a function with the alias of a database.

    Of an object that is one queue the function gets the queue's name, too.
    """

    def run(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return act(Queue.objects.database(self._using), *self._name_of_queue(), *args, **kwargs)

    signature = inspect.signature(act)
    own = list(signature.parameters.values())[1:]
    one = _documented(run, act, signature, [_SELF, *own[1:]])
    many = _documented(run, act, signature, [_SELF, *own])
    return Method(one, many), Method(_asynchronous(one), _asynchronous(many))


def _refuse_unknown(signature: inspect.Signature, name: str, given: Iterable[str]) -> None:
    """Raises TypeError that names the argument which was meant."""
    known = list(signature.parameters)[1:]
    for argument in given:
        if argument not in known:
            meant = _ELSEWHERE.get(argument) or next(iter(get_close_matches(argument, known)), None)
            advice = f"did you mean {meant}?" if meant in known else f"it has {', '.join(known)}"
            raise TypeError(f"{name}() has no argument {argument!r}: {advice}") from None


def _reopened(opened: OpenQueue, error: DatabaseError) -> OpenQueue:
    if not is_gone(error):
        raise error
    Queue.objects.forget(opened.name, opened.alias)
    if not connections[opened.alias].get_autocommit():
        raise QueueNotFound(opened.name, opened.alias) from error
    return Queue.objects.resolve(opened.name, opened.alias).opened


def _documented(
    run: Callable[..., Any],
    act: Callable[..., Any],
    signature: inspect.Signature,
    parameters: list[inspect.Parameter],
) -> Callable[..., Any]:
    copy = FunctionType(run.__code__, run.__globals__, closure=run.__closure__)
    copy.__doc__ = act.__doc__
    copy.__wrapped__ = act  # type: ignore[attr-defined]
    copy.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return copy


def _asynchronous(function: Callable[..., Any]) -> Callable[..., Any]:
    async def run(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return await sync_to_async(function, thread_sensitive=True)(self, *args, **kwargs)

    run.__doc__ = function.__doc__
    run.__wrapped__ = function  # type: ignore[attr-defined]
    run.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return run
