"""How long members and batches are kept."""

from __future__ import annotations

import datetime as dt

import pytest
from django.db.models import F

from django_pgqueue import queue
from django_pgqueue.models import ArchivedMessage, Batch
from django_pgqueue.testing import drain

DAY = dt.timedelta(days=1)


@pytest.fixture(autouse=True)
def queues(db: None) -> None:
    queue("mails").create(retention=DAY)
    queue("reports").create()


def send(*bodies: int, **options: object) -> Batch:
    with queue("mails").batch(then=queue("reports").message(1)) as batch:
        batch.send_batch(bodies)
    return batch


def end(name: str = "mails") -> None:
    """End what is readable, unnoticed by batches."""
    queue(name).archive([message.id for message in queue(name).read(qty=None)])


def grow_old(days: int) -> None:
    """Let what is archived, and all batches, be older by some days."""
    ArchivedMessage.objects.update(archived_at=F("archived_at") - days * DAY)
    Batch.objects.update(created_at=F("created_at") - days * DAY, done_at=F("done_at") - days * DAY)


def test_retention_takes_no_member_before_it_is_counted():
    queue("mails").send("no member")
    end()
    grow_old(3)
    batch = send(1, 2)
    end()
    grow_old(2)

    assert queue("mails").maintain().pruned == 1
    Batch.objects.count_members([batch.pk], using="default")

    batch.refresh_from_db()
    assert (batch.completed, batch.deleted, batch.outcome) == (2, 0, "done")
    assert queue("mails").maintain().pruned == 2


def test_a_batch_that_cannot_call_back_holds_no_retention():
    batch = send(1)
    queue("reports").drop()
    end()
    Batch.objects.count_members([batch.pk], using="default")
    grow_old(2)

    assert queue("mails").maintain().pruned == 1


def test_a_batch_is_kept_as_long_as_its_members():
    send(1)
    drain("mails", lambda message: None)
    drain("reports", lambda message: None)

    queue("mails").maintain()
    assert Batch.objects.count() == 1
    grow_old(2)
    queue("mails").maintain()

    assert Batch.objects.count() == 0


def test_a_batch_outlives_its_callback():
    send(1)
    drain("mails", lambda message: None)
    grow_old(2)

    queue("mails").maintain()
    [callback] = queue("reports").read()
    assert Batch.objects.of(callback) is not None

    queue("reports").archive(callback)
    queue("mails").maintain()
    assert Batch.objects.of(callback) is None


def test_batches_without_a_callback_or_its_queue_are_deleted_too():
    with queue("mails").batch() as batch:
        batch.send(1)
    send(2)
    drain("mails", lambda message: None)
    queue("reports").drop()
    grow_old(2)

    queue("mails").maintain()

    assert Batch.objects.count() == 0


def test_batches_of_a_queue_without_retention_stay():
    queue("mails").alter(retention=None)
    send(1)
    drain("mails", lambda message: None)
    grow_old(1000)

    queue("mails").maintain()

    assert Batch.objects.count() == 1
