"""A consumer that runs in the test."""

from __future__ import annotations

from tests.worker.conftest import consume, held

__all__ = ["consume", "held"]
