"""What a step and a note cost does not grow with the steps, notes and messages of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connections

from django_pgqueue.models import Message
from tests.engine.plans.plans import watched
from tests.engine.plans.test_plans import MANY, USING, fill, fill_in_flight, run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.django_db(databases=["default", "other"]),
]

TABLES = "pgqueue_deferred, pgqueue_message, pgqueue_step, pgqueue_note"
STEPS = 10


@pytest.fixture(params=["never", "when there was nothing", "now"])
def message(request, db) -> Message:
    """A message with ten steps and a note, among as many messages as have a step and a note."""
    run(f"TRUNCATE pgqueue_ready, {TABLES}")
    if request.param == "when there was nothing":
        run(f"ANALYZE {TABLES}")
    Message.objects.using(USING).create_queue("another")
    orders = fill_in_flight("orders", MANY)
    # Steps and notes of other messages, and of messages with the same ids in another queue.
    run(
        "INSERT INTO pgqueue_step (message_id, queue_id, name, value) "
        "SELECT d.id, q.id, 'before 1', '0' FROM pgqueue_deferred d CROSS JOIN pgqueue_queue q "
        "WHERE q.name IN ('another', 'orders')"
    )
    run(
        "INSERT INTO pgqueue_note (message_id, queue_id, value) "
        "SELECT message_id, queue_id, value FROM pgqueue_step"
    )
    if request.param == "now":
        run(f"ANALYZE {TABLES}")
    fill("orders", 1)
    [message] = orders.read(in_transaction=True)
    for number in range(STEPS):
        message.step(f"before {number}", int)
    message.note({"row": 1}, flush=True)
    orders.set_vt(message, 0)
    [later] = orders.read(in_transaction=True)
    assert later.id == message.id
    return later


OPERATIONS: dict[str, Callable[[Message], Any]] = {
    "load and store": lambda message: message.step("charge", int),
    "store atomically": lambda message: message.step("charge", int, atomic=True),
    "note": lambda message: message.note({"row": 2}, flush=True),
    "last note": lambda message: message.last_note(),
    "erase": lambda message: Message.objects.using(USING).filter(pk=message.id).delete(),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_steps_and_notes_of_others_cost_nothing(message, operation):
    with watched(connections[USING], generic=True) as plans:
        OPERATIONS[operation](message)

    for plan in plans:
        plan.check(rows=2 * STEPS, buffers=40)
