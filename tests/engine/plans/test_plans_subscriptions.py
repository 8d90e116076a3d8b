"""What a subscription costs does not grow with the messages before or behind its position."""

from __future__ import annotations

import pytest
from django.db import connection

from django_pgqueue.engine.subscriptions import positions, reading
from django_pgqueue.models import BoundQueue, queue
from tests.conftest import run_sql
from tests.engine.plans.plans import watched

pytestmark = pytest.mark.slow

QTY = 10
MESSAGES, LATE = 60_000, 20_000
#: The transactions of the messages; the late ones are of the last.
TRANSACTIONS = 400

#: The position: behind nothing; at the end; within a late transaction; with many that were running.
PLACES = {
    "far behind": "since = '1:1:', until = NULL, after_xid = 0, after_id = 0",
    "at the end": "since = '410:410:', until = NULL, after_xid = 0, after_id = 0",
    "in a late transaction": (
        "since = '400:405:400', until = '410:410:', after_xid = 400, "
        "after_id = (SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY id) FROM pgqueue_message "
        "WHERE enqueued_xid = 400)"
    ),
    "many were running": (
        "since = (SELECT concat('3:399:', string_agg(x::text, ',' ORDER BY x)) "
        "FROM generate_series(3, 398) x)::pg_snapshot, until = NULL, after_xid = 0, after_id = 0"
    ),
}


@pytest.fixture(params=["when there was nothing", "now"])
def audit(request, orders) -> BoundQueue:
    queue("audit").subscribe(to="orders", start="earliest")
    tables = "pgqueue_cursor, pgqueue_lease, pgqueue_message"
    if request.param == "when there was nothing":
        run_sql(f"ANALYZE {tables}")
    # Not sent and then changed: dead entries of this transaction would lie at the index's end.
    run_sql(
        "INSERT INTO pgqueue_message (queue_id, body, enqueued_xid) "
        "SELECT (SELECT id FROM pgqueue_queue WHERE name = 'orders'), '0', "
        "CASE WHEN n > %(late)s THEN 3 + n %% (%(last)s - 4) ELSE %(last)s END "
        "FROM generate_series(1, %(all)s) n",
        {"all": MESSAGES, "late": LATE, "last": TRANSACTIONS},
    )
    # Positions that were left and not vacuumed yet.
    run_sql(
        "DO $$ BEGIN FOR n IN 1..2000 LOOP "
        "WITH gone AS (DELETE FROM pgqueue_cursor RETURNING *) INSERT INTO pgqueue_cursor "
        "(number, system, queue_id, since) SELECT number + 1, system, queue_id, since FROM gone; "
        "END LOOP; END $$"
    )
    if request.param == "now":
        run_sql(f"ANALYZE {tables}")
    return queue("audit")


@pytest.mark.parametrize("place", PLACES)
def test_a_read_touches_little_wherever_the_position_is(audit, place):
    run_sql(f"UPDATE pgqueue_cursor SET {PLACES[place]}")
    reading._memories.clear()

    with watched(connection) as plans:
        found = audit.read(qty=QTY)

    assert len(found) == (0 if place == "at the end" else QTY)
    for plan in plans:
        # Each transaction that was running is one look at the index.
        many = place == "many were running"
        plan.check(rows=5000 if many else 100 + QTY, buffers=3000 if many else 400)


def test_an_ack_and_an_extension_touch_their_leases_alone(audit):
    found = audit.read(qty=5000)
    for _ in range(20):
        audit.read(qty=500)

    with watched(connection) as plans:
        audit.set_vt(found[:3], 600)
        audit.archive(found[3:6])
        audit.archive(audit.read(qty=QTY))

    for plan in plans:
        plan.check(rows=6000, buffers=600)


@pytest.mark.parametrize("place", PLACES)
def test_lag_counts_to_its_limit(audit, place):
    run_sql(f"UPDATE pgqueue_cursor SET {PLACES[place]}")

    with watched(connection) as plans:
        lag = positions.lag(audit._open(), 1000)

    assert lag is not None
    assert lag.messages >= (0 if place == "at the end" else 1000)
    for plan in plans:
        plan.check(rows=5000, buffers=5000)
