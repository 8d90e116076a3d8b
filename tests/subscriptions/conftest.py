"""Fixtures of the tests of subscriptions."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from django_pgqueue.models import BoundQueue, queue
from tests.promises.conftest import full_speed
from tests.subscriptions.gates import Gate

__all__ = ["audit", "full_speed", "gate", "orders"]


@pytest.fixture
def orders(committed_orders: BoundQueue) -> BoundQueue:
    """A committed queue: a read looks for what other transactions committed."""
    return committed_orders


@pytest.fixture
def audit(committed_orders: BoundQueue) -> BoundQueue:
    """A committed subscription to the queue ``orders``, from its first message on."""
    queue("audit").subscribe(to="orders", start="earliest")
    return queue("audit")


@pytest.fixture
def gate(committed: None) -> Iterator[Callable[..., Gate]]:
    """``gate("pgqueue_cursor", "DELETE")`` stops actors before that; see :class:`Gate`."""
    gates: list[Gate] = []

    def close(table: str, event: str, when: str = "BEFORE") -> Gate:
        gates.append(Gate(table, event, when))
        return gates[-1]

    yield close
    for each in gates:
        each.remove()
