"""Decorators for operations: copy a docstring, make an async twin, take a queue's settings."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Coroutine
from functools import wraps
from inspect import Parameter
from itertools import chain
from typing import Any, Concatenate, ParamSpec, TypeVar, cast, get_type_hints

from asgiref.sync import sync_to_async

from django_pgqueue.engine.habits import QUEUE, unexpected
from django_pgqueue.tables.queue import SETTINGS

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


def takes(declared: Any, *, defaults: bool = True) -> Callable[[F], F]:
    """Return a decorator for a function that takes ``**settings``, those of ``declared``.

    Puts them into the signature, from which squashmigrations knows what to write, and into the
    docstring in place of its line about settings. Other arguments raise TypeError. Without
    ``defaults`` the signature shows none: a setting that is not given stays as it is.
    """
    types = get_type_hints(declared)

    def take(function: F) -> F:
        @wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            if unknown := given.keys() - signature.parameters.keys():
                raise unexpected(call, unknown, QUEUE)
            return function(*args, **given)

        own = inspect.signature(function)
        parameters = [each for each in own.parameters.values() if each.kind != each.VAR_KEYWORD]
        for name, annotation in types.items():
            default = SETTINGS[name].get_default() if defaults else ...
            parameters.append(
                Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            )
        signature = own.replace(parameters=parameters)
        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__annotations__ = {each.name: each.annotation for each in parameters[1:]}
        call.__doc__ = re.sub(r"( *)settings: .*\n", explained, function.__doc__ or "", count=1)
        return cast("F", call)

    def explained(line: re.Match[str]) -> str:
        """Return the help texts of the settings, indented as the line."""
        indent = line[1]
        texts = {name: str(SETTINGS[name].help_text).replace("Empty:", "None:") for name in types}
        lines = (
            textwrap.wrap(f"{name}: {text}", 100 - len(indent), subsequent_indent="    ")
            for name, text in texts.items()
        )
        return textwrap.indent("\n".join(chain.from_iterable(lines)), indent) + "\n"

    return take
