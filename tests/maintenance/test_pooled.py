"""Maintenance behind pgbouncer, where each transaction may run in another session."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from django_pgqueue.maintenance import lease
from django_pgqueue.models import Queue
from tests.acceptance.test_transactions import pgbouncer
from tests.actors import Actor, call, execute
from tests.maintenance.test_retention import DAY, archived, done, partition, partitions, sent

__all__ = ["pgbouncer"]

pytestmark = pytest.mark.acceptance

LIMITS = "SELECT current_setting('lock_timeout'), current_setting('statement_timeout')"


def hold(token: UUID) -> bool:
    return lease.hold(token, 60, using="default")


def leave(token: UUID) -> None:
    lease.leave(token, using="default")


def test_partitions_are_made_and_dropped_behind_pgbouncer(committed, pgbouncer):
    with Actor({"default": pgbouncer}) as pooled:
        pooled.do(call, "create_queue", "daily", partition_interval=DAY, retention=7 * DAY)
        queue = Queue.objects.get()
        old = partition(queue, 10)
        done(queue, sent(queue, 3, 10), 8)
        done(queue, sent(queue, 3, 40), 38)
        before = pooled.do(execute, LIMITS)

        maintained = pooled.do(call, "maintain", "daily")

        assert (maintained.dropped, maintained.pruned) == (3, 3)
        assert old not in partitions(queue)
        assert archived(queue) == []
        assert pooled.do(execute, LIMITS) == before


def test_one_holds_the_lease_behind_pgbouncer(committed, pgbouncer):
    mine, other = uuid4(), uuid4()
    with Actor({"default": pgbouncer}) as one, Actor({"default": pgbouncer}) as two:
        assert one.do(hold, mine)
        assert not two.do(hold, other)
        assert one.do(hold, mine)

        one.do(leave, mine)

        assert two.do(hold, other)
