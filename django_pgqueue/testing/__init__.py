"""Test helpers for projects: handle queued messages, assert on sent ones, advance time."""

from __future__ import annotations

from django_pgqueue.testing.assertions import (
    assert_enqueued,
    assert_not_enqueued,
    captured_messages,
)
from django_pgqueue.testing.databases import MakeQueue, make_queues, make_tables
from django_pgqueue.testing.draining import drain, eager
from django_pgqueue.testing.travelling import travel

__all__ = [
    "MakeQueue",
    "assert_enqueued",
    "assert_not_enqueued",
    "captured_messages",
    "drain",
    "eager",
    "make_queues",
    "make_tables",
    "travel",
]
