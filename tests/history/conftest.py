"""Fixtures that start consumers, whose history the tests examine."""

from __future__ import annotations

from tests.worker.conftest import consume, drain, events

__all__ = ["consume", "drain", "events"]
