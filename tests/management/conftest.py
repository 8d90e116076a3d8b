"""Fixtures: a role without rights, and queues of each kind."""

from __future__ import annotations

import datetime as dt

import pytest

from django_pgqueue.models import Message
from tests.management.roles import role

__all__ = ["role"]


@pytest.fixture
def queues(committed: None) -> None:
    """A queue of each kind, and one with a dead-letter queue."""
    Message.objects.create_queue("dead")
    Message.objects.create_queue("orders", dead_letter_queue="dead")
    Message.objects.create_queue("fast", unlogged=True)
    Message.objects.create_queue("clicks", partition_interval=dt.timedelta(days=1))
    Message.objects.create_queue("mails")
    Message.objects.bind("order.#", "orders")
