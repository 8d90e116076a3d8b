"""What a count of a batch costs does not grow with other messages, members and batches."""

from __future__ import annotations

import pytest
from django.db import connections

from django_pgqueue.models import Batch
from tests.engine.plans.plans import watched
from tests.engine.plans.test_plans import MANY, USING, fill, fill_archive, run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.django_db(databases=["default", "other"]),
]

TABLES = "pgqueue_message, pgqueue_archive, pgqueue_batch, pgqueue_batch_part"
MEMBERS = 500


@pytest.fixture(params=["never", "when there was nothing", "now"])
def batch(request, db) -> Batch:
    """A batch of which some members have ended, after many messages and batches of others."""
    if request.param == "when there was nothing":
        run(f"ANALYZE {TABLES}")
    orders = fill_archive("orders", MANY)
    dead = fill("dead", MANY)
    orders.alter(dead_letter_queue="dead")
    with orders.batch(then=dead.message(1)) as other:
        other.send(0)
    run(
        "INSERT INTO pgqueue_batch (queue_id, name, then_queue, passed, members, completed, "
        "  failed, dead_lettered, cancelled, expired, replaced, deleted, sealed_at, done_at, "
        "  abandoned, error) "
        "SELECT queue_id, '', '', 0, 1, 1, 0, 0, 0, 0, 0, 0, now(), now(), false, '' "
        "FROM pgqueue_batch, generate_series(1, %s)",
        MANY // 10,
    )
    run(
        "INSERT INTO pgqueue_batch_part (batch_id, first, ids) "
        "SELECT %s, n * 1000, '[1]' FROM generate_series(1, %s) n",
        other.pk,
        MANY // 100,
    )
    with orders.batch(then=dead.message(1)) as batch:
        ids = batch.send_batch([*range(MEMBERS)])
    orders.archive(ids[: MEMBERS // 2])
    if request.param == "now":
        run(f"ANALYZE {TABLES}")
    return batch


def test_others_cost_a_count_nothing(batch):
    with watched(connections[USING], generic=True) as plans:
        Batch.objects.count_members([batch.pk], using=USING)

    for plan in plans:
        plan.check(rows=3 * MEMBERS, buffers=20 * MEMBERS)


def test_others_cost_the_end_nothing(batch):
    Batch.objects.count_members([batch.pk], using=USING)
    with watched(connections[USING], generic=True) as plans:
        batch.cancel()

    assert batch.done_at is not None
    for plan in plans:
        plan.check(rows=3 * MEMBERS, buffers=60 * MEMBERS)
