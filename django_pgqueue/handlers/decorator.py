"""The type of what @consumer returns. Type checkers read ``decorator.pyi``."""

from __future__ import annotations

from typing import Generic, TypeVar

Batch = TypeVar("Batch")


class Decorator(Generic[Batch]):
    """A decorator for handlers of single messages, or of batches."""
