"""Fixtures of the tests of batches."""

from __future__ import annotations

from tests.subscriptions.conftest import gate

__all__ = ["gate"]
