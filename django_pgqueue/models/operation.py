"""Turns functions of the engine into methods of queues and of the manager, with async twins.

:func:`operation` and :func:`on_database` take a function and return two attributes for a class: the
method and its async twin. Both have the function's signature and docstring, for ``help()`` and the
reference; type checkers find them in ``methods.pyi``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from types import FunctionType, MethodType
from typing import Any

from asgiref.sync import sync_to_async
from django.db import DatabaseError, ProgrammingError, connections, models

from django_pgqueue.engine.queue import OpenQueue
from django_pgqueue.errors import QueueNotFound
from django_pgqueue.models.queue import Queue, explained
from django_pgqueue.sqlstates import is_gone

__all__ = ["Method", "on_database", "operation", "reopened"]

_QUEUE = inspect.Parameter(
    "queue", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation="str | Queue"
)
#: Other libraries' names for our arguments.
_ELSEWHERE = {"countdown": "delay", "eta": "delay"}

_SELF = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)


class Method:
    """A method with two signatures. On a manager, the queue is the first argument."""

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
    """A method, and its async twin, that call a function with an open queue.

    ``then`` converts the function's return value to the type ``returns``; its arguments are the
    method's object, the queue and the value. If another process dropped and re-created the queue,
    the call is repeated with the new queue, except inside a broken transaction.
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
            opened = reopened(opened, error)
            result = act(opened, *args, **kwargs)
        return result if then is None else then(self, opened, result)

    own = list(signature.parameters.values())[1:]
    shown = signature.replace(return_annotation=returns) if returns else signature
    one = _documented(run, act, shown, [_SELF, *own])
    many = _documented(run, act, shown, [_SELF, _QUEUE, *own])
    return Method(one, many), Method(_asynchronous(one), _asynchronous(many))


def on_database(act: Callable[..., Any]) -> tuple[Method, Method]:
    """A method, and its async twin, that call a function with the alias of a database.

    On a bound queue the function also gets the queue's name.
    """

    signature = inspect.signature(act)

    def run(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        alias = Queue.objects.database(self._using)
        try:
            return act(alias, *self._name_of_queue(), *args, **kwargs)
        except TypeError:
            _refuse_unknown(signature, act.__name__, kwargs)
            raise
        except ProgrammingError as error:
            raise explained(error, alias) from error.__cause__

    own = list(signature.parameters.values())[1:]
    one = _documented(run, act, signature, [_SELF, *own[1:]])
    many = _documented(run, act, signature, [_SELF, *own])
    return Method(one, many), Method(_asynchronous(one), _asynchronous(many))


def _refuse_unknown(signature: inspect.Signature, name: str, given: Iterable[str]) -> None:
    """Raise TypeError for an unknown argument, and suggest the likely one."""
    known = list(signature.parameters)[1:]
    for argument in given:
        if argument not in known:
            meant = _ELSEWHERE.get(argument) or next(iter(get_close_matches(argument, known)), None)
            advice = f"did you mean {meant}?" if meant in known else f"it has {', '.join(known)}"
            raise TypeError(f"{name}() has no argument {argument!r}: {advice}") from None


def reopened(opened: OpenQueue, error: DatabaseError) -> OpenQueue:
    """The queue that replaced a dropped one. Raises ``error`` if the queue was not dropped.

    Raises QueueNotFound.
    """
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
