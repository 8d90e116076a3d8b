"""Batches of roles that may only send, or consume, some queues."""

from __future__ import annotations

from functools import partial

import pytest

from django_pgqueue import queue
from django_pgqueue.models import Batch, BatchPart, Message, Queue
from tests.conftest import run_sql
from tests.management.calling import call
from tests.management.roles import acting, refused

pytestmark = pytest.mark.usefixtures("committed")


def grant(role: str, kind: str, *names: str) -> None:
    chosen = [word for name in names for word in ("--queue", name)]
    call("pgqueue_grants", "--role", role, "--for", kind, *chosen, "--apply")


def begin(then: str = "mails", members: int = 1) -> Batch:
    """A batch of orders, whose callback goes to a queue."""
    with queue("orders").batch(then=queue(then).message("all sent")) as batch:
        for body in range(members):
            batch.send(body)
    return batch


def complete_all() -> None:
    queue("orders").archive(queue("orders").read(qty=None))


def count(batch: Batch) -> set[int]:
    return Batch.objects.count_members([batch.pk], using="default")


def callbacks(name: str = "mails") -> list[Message]:
    return list(Message.objects.filter(queue__name=name))


# Senders


def test_a_sender_sends_a_batch_and_a_consumer_counts_it(role, queues):
    grant(role, "sender", "orders", "mails")

    with acting(role):
        batch = begin()
        with queue("orders").batch() as many:
            many.send_batch([*range(1500)])
    complete_all()
    count(batch)
    count(many)

    assert [each.headers["x-batch"]["completed"] for each in callbacks()] == [1]
    assert Batch.objects.get(pk=many.pk).completed == 1500


def test_a_sender_adds_members_and_seals(role, queues):
    grant(role, "sender", "orders", "mails")
    there = queue("orders").open_batch(then=queue("mails").message(1))

    with acting(role):
        mine = queue("orders").open_batch(then=queue("mails").message(2))
        for batch in (mine, Batch.objects.get(pk=there.pk)):
            batch.send(1)
            batch.send_batch([2, 3])
            assert batch.seal()
    complete_all()
    Batch.objects.count_members([mine.pk, there.pk], using="default")

    assert sorted(each.body for each in callbacks()) == [1, 2]


def test_a_sender_ends_a_batch_without_members(role, queues, caplog):
    grant(role, "sender", "orders", "mails")

    with acting(role):
        batch = begin(members=0)

    assert batch.outcome == "done"
    assert [each.body for each in callbacks()] == ["all sent"]
    assert [each for each in caplog.records if "batch" in each.message and each.levelno > 30] == []


def test_a_role_stores_no_callback_that_it_could_not_send_itself(role, queues):
    grant(role, "sender", "orders")

    with acting(role):
        for name in ("mails", "MAILS"):
            assert refused(partial(begin, name))
            forged = Batch(queue=Queue.objects.get(name="orders"), then_queue=name)
            assert refused(partial(forged.save, using="default"))
        # One that is made later, where the consumer may send and the role may not.
        later = Batch(queue=Queue.objects.get(name="orders"), then_queue="later")
        assert refused(partial(later.save, using="default"))


@pytest.mark.parametrize("kind", ["sender", "consumer", "operator"])
def test_no_role_changes_a_callback(role, queues, kind):
    grant(role, kind, "orders")
    with acting(role):
        begin("orders")

        for column in ("then_queue = 'mails'", "callback = '{}'", "queue_id = queue_id"):
            assert refused(partial(run_sql, f"UPDATE pgqueue_batch SET {column}"))


def test_a_sender_cancels_no_messages(role, queues):
    grant(role, "sender", "orders")
    pk = queue("orders").send("of somebody else")

    with acting(role):
        batch = begin("orders")
        assert refused(batch.cancel)
        assert refused(partial(run_sql, "UPDATE pgqueue_batch SET cancelled_at = now()"))
        assert refused(
            lambda: run_sql(
                "INSERT INTO pgqueue_batch SELECT (jsonb_populate_record(b, "
                """'{"id": 99, "cancelled_at": "2026-01-01T00:00:00Z"}')).* FROM pgqueue_batch b"""
            )
        )
    count(batch)

    assert queue("orders").peek(qty=9)[0].pk == pk


def test_a_sender_sees_and_changes_no_batches_of_other_queues(role, queues):
    grant(role, "sender", "mails")
    grant(role, "analyst", "dead")
    batch = begin()
    with queue("dead").batch() as seen:
        seen.send(1)

    with acting(role):
        assert not Batch.objects.filter(pk=batch.pk).exists()
        assert not BatchPart.objects.filter(batch=batch.pk).exists()
        assert Batch.objects.get(pk=seen.pk).members == 1
        assert refused(partial(BatchPart(batch=batch, first=7, ids=[1]).save, using="default"))
        assert refused(partial(BatchPart(batch=seen, first=7, ids=[1]).save, using="default"))
        assert Batch.objects.update(sealed_at=None) == 0


# Consumers


def test_a_consumer_counts_cancels_and_sends_the_callback(role, queues):
    grant(role, "consumer", "orders")
    grant(role, "sender", "mails")
    first, second = begin(), begin(members=3)

    with acting(role):
        queue("orders").archive(queue("orders").read(qty=1))
        assert sorted(Batch.objects.due(using="default")) == [first.pk, second.pk]
        count(first)
        assert Batch.objects.get(pk=second.pk).cancel()

    outcomes = [each.headers["x-batch"]["outcome"] for each in callbacks()]
    assert outcomes == ["done", "cancelled"]


def test_a_consumer_counts_dead_letters(role, queues):
    grant(role, "consumer", "orders")
    batch = begin("orders")

    with acting(role):
        queue("orders").read()[0].reject("no")
        count(batch)

    batch.refresh_from_db()
    assert (batch.dead_lettered, batch.outcome) == (1, "done")


def test_a_callback_that_the_consumer_may_not_send_waits_for_one_that_may(role, queues):
    grant(role, "consumer", "orders")
    batch = begin()

    with acting(role):
        complete_all()
        count(batch)

    batch.refresh_from_db()
    assert (batch.completed, batch.outcome, callbacks()) == (1, "running", [])
    assert "permission denied" in batch.error
    grant(role, "sender", "mails")
    with acting(role):
        count(batch)
    assert [each.body for each in callbacks()] == ["all sent"]


def test_a_consumer_leaves_the_batches_of_a_queue_that_it_may_only_send_to(role, queues):
    grant(role, "consumer", "orders")
    grant(role, "sender", "mails")
    with queue("mails").batch() as theirs:
        theirs.send(1)

    with acting(role):
        assert Batch.objects.due(using="default") == []
        assert count(theirs) == set()


def test_a_consumer_of_a_subscription_leaves_the_batches_of_its_source(role, queues):
    queue("audit").subscribe(to="orders")
    grant(role, "consumer", "audit")
    batch = begin()

    with acting(role):
        assert Batch.objects.due(using="default") == []
        assert count(batch) == set()


def test_a_forged_callback_replaces_no_message(role, queues):
    queue("mails").send("theirs", unique="k", until="done", delay=60)
    batch = begin()
    options = {"unique": "k", "until": "done", "on_conflict": "replace"}
    Batch.objects.filter(pk=batch.pk).update(callback={"body": "forged", "options": options})
    complete_all()
    count(batch)

    assert [each.body for each in callbacks()] == ["theirs", "forged"]
