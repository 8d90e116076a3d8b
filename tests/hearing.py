"""Listens to a signal during a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.dispatch import Signal

__all__ = ["heard", "listening"]


@contextmanager
def listening(signal: Signal, listener: Callable[..., Any]) -> Iterator[None]:
    signal.connect(listener)
    try:
        yield
    finally:
        signal.disconnect(listener)


@contextmanager
def heard(signal: Signal) -> Iterator[list[dict[str, Any]]]:
    """Collect the arguments of every call."""
    calls: list[dict[str, Any]] = []
    with listening(signal, lambda **kwargs: calls.append(kwargs)):
        yield calls
