"""Batches: messages of a queue, and a callback that is sent when all of them have ended."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from django.db import DataError, connection, transaction

from django_pgqueue import queue
from django_pgqueue.errors import BatchSealed, InvalidArgument, QueueNotFound
from django_pgqueue.models import ArchivedMessage, Batch, Message
from django_pgqueue.testing import drain, travel
from tests.conftest import run_sql


@pytest.fixture(autouse=True)
def queues(db: None) -> None:
    queue("mails").create(max_deliveries=3)
    queue("reports").create()


def report(body: Any = "mails") -> Any:
    return queue("reports").message(body)


def callbacks() -> list[Message]:
    """What was sent as a callback, the oldest first."""
    return list(Message.objects.filter(queue__name="reports").order_by("id"))


def fails(message: Message) -> None:
    raise OSError("no such user")


def handle(name: str = "mails", **options: Any) -> int:
    """Handle what is readable; returns how many messages."""
    return len(drain(name, lambda message: None, **options))


def test_the_last_end_sends_the_callback():
    with queue("mails").batch(then=report({"of": "mails"}), name="newsletter") as batch:
        one = batch.send({"user": 1})
        batch.send_batch([{"user": 2}, {"user": 3}])
    assert callbacks() == []

    assert handle() == 3

    [callback] = callbacks()
    assert callback.body == {"of": "mails"}
    assert callback.headers == {
        "x-batch": {
            "id": batch.pk,
            "name": "newsletter",
            "outcome": "done",
            "members": 3,
            **dict.fromkeys(("failed", "dead_lettered", "cancelled", "expired"), 0),
            "replaced": 0,
            "deleted": 0,
            "completed": 3,
        }
    }
    batch.refresh_from_db()
    assert (batch.outcome, batch.progress, batch.callback_id) == ("done", 1.0, callback.pk)
    assert Batch.objects.of(callback) == Batch.objects.of(Message.objects.get(pk=one)) == batch


def test_a_batch_without_members_calls_back_at_once():
    with queue("mails").batch(then=report()):
        pass
    queue("mails").open_batch(then=report()).seal()

    assert [each.headers["x-batch"]["members"] for each in callbacks()] == [0, 0]


def test_a_batch_needs_no_callback():
    with queue("mails").batch() as batch:
        batch.send(1)
    handle()

    batch.refresh_from_db()
    assert batch.done_at is not None
    assert batch.callback_id is None


def test_an_error_in_the_block_leaves_nothing():
    with pytest.raises(OSError, match="no such user"), queue("mails").batch(then=report()) as batch:
        fails(queue("mails").message(batch.send(1)))  # type: ignore[arg-type]

    assert not Batch.objects.exists()
    assert not Message.objects.exists()


@pytest.mark.parametrize("end", [Batch.seal, Batch.cancel])
def test_a_block_is_not_ended_from_within(end):
    with queue("mails").batch(then=report()) as batch:
        batch.send(1)
        with pytest.raises(InvalidArgument, match="in its with block"):
            end(batch)
        batch.send(2)

    assert (batch.members, batch.outcome) == (2, "running")


def test_a_sender_that_rolls_back_leaves_no_batch():
    with transaction.atomic():
        with queue("mails").batch(then=report()) as batch:
            batch.send(1)
        transaction.set_rollback(True)

    assert (Batch.objects.count(), Message.objects.count()) == (0, 0)


def test_what_a_savepoint_rolls_back_is_no_member():
    with queue("mails").batch(then=report()) as batch:
        batch.send("before")
        for body in ("kept", "rolled back"):
            with transaction.atomic():
                batch.send(body)
                batch.send_batch([body, body])
                transaction.set_rollback(body != "kept")
        batch.send("after")
    assert batch.members == 5
    handle()

    told = callbacks()[0].headers["x-batch"]
    assert (told["members"], told["completed"]) == (5, 5)


def test_each_way_to_end_is_counted_as_what_it_is():
    queue("dead").create()
    with queue("mails").batch(then=report()) as batch:
        ids = batch.send_batch([*range(5)])
        batch.send("expires", expires=60)
        batch.send("replaced", unique="key", on_conflict="replace", until="done", delay=1)
    mails = queue("mails")
    mails.send("takes its place", unique="key", on_conflict="replace", until="done")
    messages = {message.id: message.receipt for message in mails.read(qty=4)}
    mails.fail({messages[ids[0]]: "no such user"})
    mails.complete([messages[ids[1]]])
    mails.cancel(ids[2])
    mails.delete(ids[3])
    mails.alter(dead_letter_queue="dead")
    [last] = [each for each in mails.read(qty=1) if each.id == ids[4]]
    mails.fail({last.receipt: "no such user"})
    travel(100)
    handle()
    travel(60)

    [callback] = callbacks()
    told = callback.headers["x-batch"]
    assert {each: told[each] for each in batch.counts} == dict.fromkeys(batch.counts, 1)


def test_only_what_it_sent_itself_is_its_member():
    queue("mails").send("other", unique="key")
    with queue("mails").batch(then=report()) as batch:
        batch.send("duplicate", unique="key")
        batch.send("own")
    handle()

    assert callbacks()[0].headers["x-batch"]["members"] == 1


def test_members_have_the_headers_of_their_send():
    with queue("mails").batch() as batch:
        batch.send(1, headers={"a": 1})
        batch.send_batch([2, 3], headers=[{"a": 2}, None])
        batch.send_batch([4], headers={"a": 4})
        batch.send_batch([5], headers=deque([{"a": 5}]))

    assert [each.headers for each in Message.objects.order_by("id")] == [
        {"a": 1, "x-batch": batch.pk},
        {"a": 2, "x-batch": batch.pk},
        {"x-batch": batch.pk},
        {"a": 4, "x-batch": batch.pk},
        {"a": 5, "x-batch": batch.pk},
    ]


def test_an_open_batch_takes_members_until_it_is_sealed():
    batch = queue("mails").open_batch(then=report())
    batch.send(1)
    handle()
    assert (batch.outcome, callbacks()) == ("open", [])

    [again] = queue("mails").batches()
    again.send_batch([2, 3])
    handle()
    assert callbacks() == []
    assert again.seal() is True
    assert again.seal() is False

    assert callbacks()[0].headers["x-batch"]["completed"] == 3
    with pytest.raises(BatchSealed, match=f"Batch {batch.pk} takes no more members"):
        batch.send(4)
    assert Message.objects.filter(queue__name="mails").count() == 3


def test_handlers_add_members_to_their_batch():
    def handler(message: Message) -> None:
        batch = Batch.objects.of(message)
        assert batch is not None
        if message.body < 3:
            batch.send(message.body + 1)
        else:
            batch.seal()

    queue("mails").open_batch(then=report()).send(1)
    drain("mails", handler)

    assert callbacks()[0].headers["x-batch"]["completed"] == 3


def test_a_batch_that_nothing_seals_ends_by_its_deadline():
    batch = queue("mails").open_batch(then=report(), open_for=3600)
    batch.send(1)
    handle()
    travel(3500)
    assert callbacks() == []

    travel(200)

    [callback] = callbacks()
    assert callback.headers["x-batch"]["outcome"] == "abandoned"
    batch.refresh_from_db()
    assert batch.outcome == "abandoned"
    assert batch.done_at is not None


def test_a_cancel_cancels_all_members_that_have_not_ended():
    with queue("mails").batch(then=report()) as batch:
        batch.send_batch([*range(2500)])
    for message in queue("mails").read(qty=3):
        queue("mails").archive(message)
    queue("mails").read(qty=2)  # in flight

    assert batch.cancel() is True

    assert (batch.completed, batch.cancelled, batch.outcome) == (3, 2497, "cancelled")
    assert callbacks()[0].headers["x-batch"]["outcome"] == "cancelled"
    assert batch.cancel() is False
    assert ArchivedMessage.objects.filter(error=f"batch {batch.pk} was cancelled").count() == 2497


def test_a_count_goes_on_while_members_have_ended():
    with queue("mails").batch(then=report()) as batch:
        batch.send_batch([*range(9500)])
    queue("mails").set_vt([each.id for each in queue("mails").peek(qty=20)], 60)
    queue("mails").archive([each.id for each in queue("mails").peek(qty=None)])

    left = {batch.pk}
    while left:
        left = Batch.objects.count_members(left, using="default")

    batch.refresh_from_db()
    assert (batch.completed, batch.members) == (9480, 9500)
    assert callbacks() == []


def test_a_redrive_after_the_end_reopens_nothing():
    queue("dead").create()
    queue("mails").alter(dead_letter_queue="dead")
    with queue("mails").batch(then=report()) as batch:
        batch.send(1)
    drain("mails", fails, policies=True)
    assert callbacks()[0].headers["x-batch"]["dead_lettered"] == 1

    assert queue("dead").redrive() == 1
    handle()
    travel(60)

    batch.refresh_from_db()
    assert len(callbacks()) == 1
    assert (batch.dead_lettered, batch.completed) == (1, 0)


def test_a_retry_is_no_end():
    with queue("mails").batch(then=report()) as batch:
        batch.send(1)
    [message] = queue("mails").read()
    queue("mails").retry({message.receipt: 0})
    Batch.objects.count_members([batch.pk], using="default")
    assert callbacks() == []

    handle()

    assert callbacks()[0].headers["x-batch"]["completed"] == 1


def test_members_that_ended_elsewhere_are_counted_by_the_next_look():
    with queue("mails").batch(then=report()) as batch:
        batch.send_batch([1, 2])
    queue("mails").purge()

    assert Batch.objects.due(using="default") == [batch.pk]
    assert Batch.objects.due(using="default") == []  # another process looked just now
    assert Batch.objects.count_members([batch.pk], using="default") == set()

    assert callbacks()[0].headers["x-batch"]["deleted"] == 2


def test_a_callback_that_cannot_be_sent_is_tried_again(caplog, django_capture_on_commit_callbacks):
    with queue("mails").batch(then=report()) as batch:
        batch.send(1)
    queue("reports").drop()
    with django_capture_on_commit_callbacks(execute=True):
        handle()

    batch.refresh_from_db()
    assert "reports" in batch.error
    assert batch.done_at is None
    assert [each.message for each in caplog.records if "could not send" in each.message]

    queue("reports").create()
    Batch.objects.count_members([batch.pk], using="default")

    assert len(callbacks()) == 1
    batch.refresh_from_db()
    assert (batch.error, batch.outcome) == ("", "done")


def test_a_callback_and_the_end_are_one_commit(monkeypatch):
    with queue("mails").batch(then=report()) as batch:
        batch.send(1)
    save, failures = Batch.save, [OSError("the disk is full")]

    def fail_once(self: Batch, **options: Any) -> None:
        save(self, **options)
        if "done_at" in options["update_fields"] and failures:
            raise failures.pop()

    monkeypatch.setattr(Batch, "save", fail_once)
    handle()
    assert callbacks() == []
    batch.refresh_from_db()
    assert (batch.done_at, batch.error) == (None, "the disk is full")

    Batch.objects.count_members([batch.pk], using="default")

    assert len(callbacks()) == 1


def test_a_callback_keeps_the_options_of_its_send():
    then = queue("reports").message(
        {"at": 1}, headers={"a": 1}, delay=60, expires=3600, priority=3, group="g"
    )
    with queue("mails").batch(then=then):
        pass

    [sent] = callbacks()
    assert (sent.priority, sent.group_key, sent.headers["a"]) == (3, "g", 1)
    assert (sent.scheduled_at - sent.enqueued_at).total_seconds() == 60
    assert sent.expires_at is not None


@pytest.mark.parametrize(
    ("then", "error", "told"),
    [
        (lambda: {"report": 1}, InvalidArgument, "then must be a message that is not sent yet"),
        (lambda: queue("nowhere").message(1), QueueNotFound, "nowhere"),
    ],
)
def test_a_callback_that_could_not_be_sent_is_refused_at_once(then, error, told):
    with pytest.raises(error, match=told), queue("mails").batch(then=then()):
        raise AssertionError

    assert not Batch.objects.exists()


@pytest.mark.django_db(databases=["default", "other"])
def test_a_callback_in_another_database_is_refused():
    queue("mails", using="other").create()
    then = queue("reports", using="default").message(1)

    with pytest.raises(InvalidArgument, match="a transaction cannot span both"):
        queue("mails", using="other").open_batch(then=then)


def test_a_batch_whose_block_failed_takes_no_members():
    with pytest.raises(OSError, match="no such user"), queue("mails").batch() as batch:
        fails(queue("mails").message(1))  # type: ignore[arg-type]

    with pytest.raises(BatchSealed):
        batch.send(1)
    assert not Message.objects.exists()


@pytest.mark.parametrize(
    "forged", ["1" + "0" * 6000, '{"options": []}', '"text"', "null"], ids=lambda text: text[:5]
)
def test_a_forged_callback_hinders_no_other_batch(forged):
    with queue("mails").batch(then=report()) as bad:
        bad.send(1)
    with queue("mails").batch(then=report()) as good:
        good.send(2)
    run_sql("UPDATE pgqueue_batch SET callback = %s::jsonb WHERE id = %s", [forged, bad.pk])
    queue("mails").archive([each.id for each in queue("mails").peek(qty=2)])

    Batch.objects.count_members([bad.pk, good.pk], using="default")

    assert [each.headers["x-batch"]["id"] for each in callbacks()] == [good.pk]
    assert Batch.objects.defer("callback").get(pk=bad.pk).error


def test_a_forged_part_hinders_no_other_batch():
    with queue("mails").batch(then=report()) as bad:
        bad.send(1)
    with queue("mails").batch(then=report()) as good:
        good.send(2)
    run_sql("UPDATE pgqueue_batch_part SET ids = '[\"a\"]' WHERE batch_id = %s", [bad.pk])
    queue("mails").archive([each.id for each in queue("mails").peek(qty=2)])

    with pytest.raises(DataError):
        Batch.objects.count_members([bad.pk, good.pk], using="default")

    assert [each.headers["x-batch"]["id"] for each in callbacks()] == [good.pk]


def test_a_subscription_has_no_batches():
    queue("audit").subscribe(to="mails")

    with pytest.raises(InvalidArgument, match="to its source"):
        queue("audit").open_batch()
    with pytest.raises(InvalidArgument, match="to its source"):
        queue("mails").open_batch(then=queue("audit").message(1))


def test_a_dropped_queue_takes_its_batches_along():
    with queue("mails").batch(then=report()) as batch:
        batch.send(1)
    queue("mails").drop()

    assert not Batch.objects.exists()
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pgqueue_batch_part")
        assert cursor.fetchone() == (0,)
    assert Batch.objects.count_members([batch.pk], using="default") == set()
