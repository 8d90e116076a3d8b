"""Five subscriptions at full speed: late commits, rollbacks, and a source whose messages leave."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from django_pgqueue.engine.subscriptions import reading
from django_pgqueue.models import queue
from tests.conftest import run_sql
from tests.subscriptions import oracle, players

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]

NAMES = [f"reader-{number}" for number in range(5)]
MOVED = "moved"


@pytest.fixture
def subscriptions(full_speed) -> Iterator[None]:
    run_sql("CREATE TABLE tests_sent (id bigint)")
    queue("dead").create()
    queue("orders").create(dead_letter_queue="dead", max_deliveries=10_000)
    for name in [*NAMES, MOVED]:
        queue(name).subscribe(to="orders", start="earliest", max_deliveries=10_000)
    yield
    run_sql("DROP TABLE tests_sent")


def drain(full_speed, name) -> list[int]:
    """Read and ack until a subscription has nothing left; returns the ids."""
    found: list[int] = []

    def is_empty() -> bool:
        reading._memories.clear()
        messages = queue(name).read(qty=200)
        for pk, read_ct, read_at, *_ in (message.receipt for message in messages):
            facts = {"queue": name, "id": pk, "read_ct": read_ct, "read_at": read_at}
            full_speed.journal.note("read", **facts)
        lost = {receipt.id for receipt in queue(name).archive(messages).lost}
        for pk, read_ct, read_at, *_ in (message.receipt for message in messages):
            found.append(pk)
            if pk not in lost:
                facts = {"queue": name, "id": pk, "read_ct": read_ct, "read_at": read_at}
                full_speed.journal.note("acked", **facts)
        return not messages and not oracle.left_over(name)

    full_speed.wait(is_empty)
    return found


def everything_at_once(full_speed) -> None:
    full_speed.threads(players.send_late, 16)
    full_speed.threads(players.consume_source, 2)
    full_speed.threads(players.throw_away, 1)
    full_speed.threads(partial(players.move, name=MOVED), 1)
    full_speed.threads(partial(players.read_subscription, name=MOVED), 1)


def judge(full_speed) -> None:
    for name in [*NAMES, MOVED]:
        drain(full_speed, name)
    queue(MOVED).seek("earliest")
    stored = {
        pk
        for (pk,) in run_sql(
            "SELECT id FROM pgqueue_message WHERE failure IS NULL AND headers IS NULL "
            "AND queue_id = (SELECT id FROM pgqueue_queue WHERE name = 'orders')"
        )
    }
    assert stored
    assert stored <= set(drain(full_speed, MOVED))
    notes = full_speed.notes()
    assert len(oracle.sent()) > 100
    for name in NAMES:
        assert not oracle.missed(notes, name), name
        assert not oracle.never_sent(notes, name), name
        assert not oracle.twice(notes, name), name
        assert oracle.left_over(name) == {}, name


def test_each_subscription_gets_each_committed_message_and_none_after_its_ack(
    full_speed, subscriptions
):
    everything_at_once(full_speed)
    for name in NAMES:
        full_speed.threads(partial(players.read_subscription, name=name), 2)

    full_speed.run()

    judge(full_speed)


def test_cut_connections_and_kills_lose_no_message_of_a_subscription(full_speed, subscriptions):
    everything_at_once(full_speed)
    for name in NAMES[2:]:
        full_speed.threads(partial(players.read_subscription, name=name), 1)
    for name in NAMES[:2]:
        full_speed.processes(partial(players.read_subscription, name=name), 2)
    full_speed.kill_processes()
    full_speed.cut_connections()

    full_speed.run()

    assert full_speed.killed
    assert full_speed.cut
    judge(full_speed)
