"""What failures take: the tests of each failure are among the acceptance tests."""

from __future__ import annotations

from functools import partial

import pytest

from django_pgqueue.models import ArchivedMessage, Message, queue
from tests.conftest import run_sql
from tests.promises import players
from tests.promises.draining import drain
from tests.promises.pages import promise

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]


@promise(
    "a consumer is killed | none | running handlers' effects happen again, unless exactly once"
)
def test_kills_lose_no_message(full_speed):
    Message.objects.create_queue("orders", max_deliveries=10_000)
    sent = queue("orders").send_batch(range(2000))
    full_speed.processes(
        partial(players.read_and_end, ways=["archive", "retry"], qty=[1, 40], vt=0.3)
    )
    full_speed.kill_processes()

    full_speed.run()
    drain(queue("orders"))

    assert full_speed.killed
    assert set(ArchivedMessage.objects.values_list("pk", flat=True)) == set(sent)


@promise("the network breaks, a pooler restarts | none | the same")
def test_broken_connections_lose_no_message(full_speed):
    Message.objects.create_queue("orders", max_deliveries=10_000)
    full_speed.threads(players.send, 3)
    full_speed.threads(
        partial(players.read_and_end, ways=["archive", "retry"], qty=[1, 40], vt=0.3), 5
    )
    full_speed.cut_connections()

    full_speed.run()
    drain(queue("orders"))

    assert full_speed.cut
    stored = {pk for (pk,) in run_sql("SELECT id FROM pgqueue_message")}
    assert set(ArchivedMessage.objects.values_list("pk", flat=True)) == stored


ELSEWHERE = {
    "the server crashes and recovers | none; unlogged queues are empty, and ids that they lost in "
    "the last moments may be used again | the same; leases of the last moments are undone, their "
    "messages delivered again": [
        "tests/acceptance/test_crash.py::test_a_logged_queue_keeps_all_that_was_committed",
        "tests/acceptance/test_crash.py::test_an_unlogged_queue_is_empty_after_a_crash_and_works_again",
        "tests/acceptance/test_unflushed.py::"
        "test_leases_that_a_crash_takes_are_delivered_again_and_their_receipts_are_no_good",
        "tests/acceptance/chaos/test_faults.py::test_the_server_crashes_under_load",
    ],
    "failover, synchronous standby | none | the same as for a crash": [
        "tests/ddl/test_failover.py::test_queues_made_just_before_a_failover_work_after_it"
    ],
    "failover, asynchronous standby | sends that the standby had not received: measured | commits "
    "of the same moments are undone, outside effects are not": [
        "tests/ddl/test_failover.py::test_a_lease_that_the_standby_never_got_is_delivered_again"
    ],
}
EXPLAINED = [
    # PostgreSQL's own promises.
    "synchronous_commit = off, then a crash | sends of the last moments (under a second) | acks of "
    "these moments are lost: messages are delivered again",
    "a restore to an earlier moment | sends since then | messages handled since then are handled "
    "again",
]
