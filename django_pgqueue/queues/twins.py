"""Decorators for operations: one copies a docstring, one makes an async twin."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from asgiref.sync import sync_to_async

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


def documented(act: Callable[..., Any]) -> Callable[[F], F]:
    """Return a decorator that gives a method the docstring of ``act``, the function it calls."""

    def document(method: F) -> F:
        method.__doc__ = act.__doc__
        return method

    return document


def twin_of(
    method: Callable[Concatenate[S, P], R],
) -> Callable[[Callable[..., Any]], Callable[Concatenate[S, P], Coroutine[Any, Any, R]]]:
    """Return a decorator that makes the async twin of ``method``.

    The twin runs the decorated function, which calls the method, in Django's thread for the event
    loop. The decorated function has no annotations: from its call, editors that do not understand
    this decorator find the method's arguments.
    """

    def make(call: Callable[..., Any]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
        @wraps(method)
        async def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
            found: R = await sync_to_async(call, thread_sensitive=True)(self, *args, **kwargs)
            return found

        run.__name__, run.__qualname__ = call.__name__, call.__qualname__
        run.__module__ = call.__module__
        return run

    return make
