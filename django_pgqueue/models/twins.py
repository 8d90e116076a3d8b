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
) -> Callable[[Callable[..., None]], Callable[Concatenate[S, P], Coroutine[Any, Any, R]]]:
    """Return a decorator that makes the async twin of ``method``.

    The twin runs the method in Django's thread for the event loop. The decorated function only
    names the twin.
    """

    def make(named: Callable[..., None]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
        @wraps(method)
        async def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
            return await sync_to_async(method, thread_sensitive=True)(self, *args, **kwargs)

        run.__name__, run.__qualname__ = named.__name__, named.__qualname__
        run.__module__ = named.__module__
        return run

    return make
