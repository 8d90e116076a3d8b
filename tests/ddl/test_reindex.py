"""Rebuilding indexes while messages are handled, as docs/capacity.md says."""

from __future__ import annotations

from tests.actors import begin, call, commit, execute
from tests.conftest import run_sql
from tests.waiting import until


def test_indexes_are_rebuilt_concurrently_beside_a_transaction_that_reads_and_then_writes(
    committed_orders, actors
):
    """Without CONCURRENTLY each has locked what the other waits for: the table or an index."""
    pk = committed_orders.send(1, group="a")
    [message] = committed_orders.read()
    acker, rebuilder = actors(2)
    acker.do(begin)
    acker.do(call, "why", "orders", pk)

    rebuilding = rebuilder.start(execute, "REINDEX TABLE CONCURRENTLY pgqueue_group")
    until(lambda: run_sql("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))

    assert acker.do(call, "archive", "orders", message.receipt) == [pk]
    acker.do(commit)
    rebuilding.result(timeout=30)
