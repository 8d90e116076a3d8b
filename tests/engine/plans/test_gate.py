"""Dead rows and write-ahead log per message, from send to archive."""

from __future__ import annotations

import pytest

from django_pgqueue.models import BoundQueue
from tests.conftest import run_sql

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

BODY = {"x": "y" * 190}
MESSAGES = 1000
BATCH = 100

# A message has a row in ready, and then a share of a batch's lease. The first batch is leased
# message by message.
DEAD_ROWS = 1.2
# Log bytes without the body and without full-page images: the message and its key, the row in ready
# with its index entry, a lock and a deletion, a share of the lease, the outcome and its key.
LOG_BYTES = 740


def work(queue: BoundQueue) -> None:
    """Send, read and archive a thousand messages in batches."""
    for _ in range(MESSAGES // BATCH):
        queue.send_batch([BODY] * BATCH)
    for _ in range(MESSAGES // BATCH):
        assert len(queue.archive(queue.read(qty=BATCH))) == BATCH


def written() -> tuple[int, int]:
    """Bytes of write-ahead log so far, without and with full-page images."""
    run_sql("SELECT pg_stat_force_next_flush()")
    [(records, images)] = run_sql("SELECT wal_bytes, wal_fpi FROM pg_stat_wal")
    return int(records), int(images)


def log_bytes(queue: BoundQueue) -> float:
    """Log bytes per message: the minimum of several rounds, since other sessions may write too."""
    rounds = []
    for _ in range(10):
        before, images = written()
        work(queue)
        after, images_after = written()
        if images_after == images:
            rounds.append((after - before) / MESSAGES)
        if len(rounds) == 3:
            break
    return min(rounds) - len(BODY["x"])


def dead_rows(queue: BoundQueue) -> float:
    """Deleted or updated rows per message."""
    run_sql("SELECT pg_stat_force_next_flush()")
    before = churned()
    work(queue)
    run_sql("SELECT pg_stat_force_next_flush()")
    return (churned() - before) / MESSAGES


def churned() -> int:
    [(rows,)] = run_sql(
        "SELECT sum(n_tup_upd + n_tup_del) FROM pg_stat_all_tables "
        "WHERE relname ~ '^pgqueue_(ready|deferred|lease|message|archive)'"
    )
    return int(rows)


def test_a_message_leaves_hardly_more_dead_rows_than_one(committed_orders):
    assert dead_rows(committed_orders) <= DEAD_ROWS


def test_the_log_of_a_message_stays_small(committed_orders):
    work(committed_orders)

    assert log_bytes(committed_orders) < LOG_BYTES


def test_the_gate_sees_an_index_too_many(committed_orders):
    work(committed_orders)
    run_sql("CREATE INDEX one_too_many ON pgqueue_ready (enqueued_at, id, queue_id)")
    try:
        assert log_bytes(committed_orders) > LOG_BYTES
    finally:
        run_sql("DROP INDEX one_too_many")


def test_the_gate_sees_a_row_that_is_written_twice(committed_orders):
    run_sql(
        "CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN UPDATE pgqueue_ready SET group_key = NULL WHERE id = new.id; RETURN NULL; END $$"
    )
    run_sql(
        "CREATE TRIGGER touch AFTER INSERT ON pgqueue_ready FOR EACH ROW EXECUTE FUNCTION touch()"
    )
    try:
        assert dead_rows(committed_orders) > DEAD_ROWS
    finally:
        run_sql("DROP FUNCTION touch() CASCADE")
