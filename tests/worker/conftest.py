"""Fixtures that start and stop consumers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_pgqueue import signals
from django_pgqueue.handlers import Handler
from tests.hearing import listening
from tests.worker.consuming import Held, InThread


@pytest.fixture
def consume(committed: None) -> Iterator[Callable[..., InThread]]:
    """Start a consumer: ``consume(function, queue="orders", **options of @consumer)``.

    ``options`` are the process's options; ``handlers`` replaces the function, for several queues.
    """
    started: list[InThread] = []

    def start(
        function: Callable[..., Any] | None = None,
        queue: str = "orders",
        *,
        handlers: list[Handler] | None = None,
        options: dict[str, Any] | None = None,
        **handler_options: Any,
    ) -> InThread:
        if handlers is None:
            assert function is not None
            handlers = [Handler(queue, function, **handler_options)]
        started.append(InThread(*handlers, **(options or {})))
        return started[-1]

    yield start
    for each in started:
        each.consumer.abort()
    for each in started:
        each.wait()


@pytest.fixture
def drain(consume: Callable[..., InThread]) -> Callable[..., InThread]:
    """Start a draining consumer, and wait until the queue is drained."""

    def run(*args: Any, options: dict[str, Any] | None = None, **kwargs: Any) -> InThread:
        run = consume(*args, options={"drain": True, **(options or {})}, **kwargs)
        run.wait()
        return run

    return run


@pytest.fixture
def held(consume: Callable[..., InThread]) -> Iterator[Held]:
    """A handler that blocks until released; it is released before its consumer stops."""
    held = Held()
    yield held
    held.let_go()


@pytest.fixture
def events() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """Every signal received: its name and its arguments."""
    heard: list[tuple[str, dict[str, Any]]] = []
    with contextlib.ExitStack() as listeners:
        for name in signals.__all__:

            def receive(name: str = name, **kwargs: Any) -> None:
                kwargs.pop("signal")
                heard.append((name, kwargs))

            listeners.enter_context(listening(getattr(signals, name), receive))
        yield heard
