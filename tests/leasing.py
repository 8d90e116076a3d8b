"""Leases messages like a consumer process, and lets leases expire."""

from __future__ import annotations

from typing import Any

from django_pgqueue.engine.read import grouped, reading
from django_pgqueue.models import Message, Queue
from django_pgqueue.types import Receipt
from tests.conftest import run_sql

__all__ = ["follow", "lease", "run_out"]


def lease(queue: str | Queue, **options: Any) -> list[Message]:
    """Lease messages; ``options`` are those of the engine's ``lease``."""
    opened = Queue.objects.resolve(queue).opened
    return Message.from_deliveries(opened, reading.lease(opened, **options))


def follow(queue: str | Queue, heads: list[Receipt], **options: Any) -> list[Message]:
    """Lease messages behind these heads; ``options`` are those of the engine's ``follow``."""
    opened = Queue.objects.resolve(queue).opened
    return Message.from_deliveries(opened, grouped.follow(opened, heads, **options))


def run_out() -> None:
    """Let all leases and delays end."""
    for table in ("pgqueue_lease", "pgqueue_deferred"):
        run_sql(f"UPDATE {table} SET vt = statement_timestamp()")
