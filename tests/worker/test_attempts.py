"""Each failed attempt is stored: its time, its process and its error."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.db import connection

from django_pgqueue import queue
from django_pgqueue.acks import Failure, Reject, Retry
from django_pgqueue.conf import settings
from django_pgqueue.maintenance import upkeep
from django_pgqueue.maintenance.work import Work
from django_pgqueue.models import ArchivedMessage, Attempt, BoundQueue, Message, Queue
from django_pgqueue.retries import Constant, NoRetry


class CardRefused(Exception):
    pass


def refuse(message: Message) -> None:
    raise CardRefused(f"card of order {message.body}")


def attempts(message_id: int) -> list[tuple[int, str, str]]:
    return [(a.attempt, a.error_class, a.message) for a in queue("orders").attempts(message_id)]


def test_every_attempt_is_kept_with_its_process(committed_orders, drain):
    pk = committed_orders.send(7)
    processes: list[int | None] = []

    def charge(message: Message, context: Any) -> None:
        processes.append(context.process_id)
        refuse(message)

    drain(charge, retry=Constant(seconds=0, max_attempts=3))

    path = f"{CardRefused.__module__}.CardRefused"
    assert attempts(pk) == [(n, path, "card of order 7") for n in (1, 2, 3)]
    kept = committed_orders.attempts(pk)
    assert [a.process_id for a in kept] == processes
    assert None not in processes
    assert all(a.traceback.rstrip().endswith("CardRefused: card of order 7") for a in kept)
    assert all("refuse(message)" in a.traceback for a in kept)


async def arefuse(message: Message) -> None:
    refuse(message)


def ack_and_refuse(message: Message) -> None:
    message.ack()
    refuse(message)


def return_the_error(message: Message) -> CardRefused:
    return CardRefused(f"card of order {message.body}")


@pytest.mark.parametrize("group", [None, "customer 12"])
@pytest.mark.parametrize(
    ("handler", "options", "line"),
    [
        (refuse, {"ack_policy": "ACK"}, "failed in attempt 1, and is not tried again"),
        (arefuse, {"ack_policy": "ACK"}, "failed in attempt 1, and is not tried again"),
        (return_the_error, {"ack_policy": "ACK"}, "failed in attempt 1, and is not tried again"),
        (refuse, {"ack_policy": "ACK", "locked": True}, "failed in attempt 1, and is not tried"),
        (refuse, {"ack_policy": "ACK_FIRST"}, "failed in attempt 1, and is not tried again"),
        (arefuse, {"ack_policy": "ACK_FIRST"}, "failed in attempt 1, and is not tried again"),
        (return_the_error, {"ack_policy": "ACK_FIRST"}, "failed in attempt 1, and is not tried"),
        (ack_and_refuse, {}, "was settled by its handler, which then failed in attempt 1"),
        (ack_and_refuse, {"ack_policy": "MANUAL"}, "was settled by its handler, which then"),
    ],
)
def test_an_error_that_changes_no_outcome_is_logged_and_kept(
    committed_orders, drain, caplog, handler, options, line, group
):
    pk = committed_orders.send(7, group=group)

    run = drain(handler, **options)

    path = f"{CardRefused.__module__}.CardRefused"
    assert attempts(pk) == [(1, path, "card of order 7")]
    done = ArchivedMessage.objects.get(pk=pk)
    assert (done.state, done.attempts) == ("COMPLETED", 1)
    assert (run.subscription.counts.completed, run.subscription.counts.settled) == (1, 1)
    [record] = [each for each in caplog.records if each.levelname == "ERROR"]
    text = record.getMessage()
    assert f"message {pk} {line}" in text
    assert text.endswith("CardRefused: card of order 7")
    assert isinstance(record.exc_info[1], CardRefused)


def test_a_result_that_is_not_json_is_logged_and_kept_under_ack(committed_orders, drain, caplog):
    pk = committed_orders.send(7)

    drain(lambda message: object(), ack_policy="ACK", keep_result=True)

    assert [path for _, path, _ in attempts(pk)] == ["django_pgqueue.errors.InvalidMessage"]
    assert "is not tried again" in caplog.text


def test_a_message_that_succeeds_keeps_its_earlier_attempts(committed_orders, drain):
    pk = committed_orders.send(7)

    def charge(message: Message) -> None:
        if message.attempts == 0:
            refuse(message)

    drain(charge, retry=Constant(seconds=0))

    assert [attempt for attempt, _, _ in attempts(pk)] == [1]
    assert ArchivedMessage.objects.get(pk=pk).state == "COMPLETED"


def test_the_cause_of_an_explicit_outcome_is_kept(committed_orders, drain):
    pk = committed_orders.send(7)

    def charge(message: Message) -> None:
        try:
            refuse(message)
        except CardRefused as error:
            if message.attempts:
                raise Reject("no more") from error
            raise Retry(0, "later") from error

    drain(charge)

    path = f"{CardRefused.__module__}.CardRefused"
    assert [(n, kind) for n, kind, _ in attempts(pk)] == [(1, path), (2, path)]
    assert (ArchivedMessage.objects.get(pk=pk).error or "").startswith("no more")


def test_a_dead_letter_keeps_its_attempts(committed, drain, sql):
    Message.objects.create_queue("dead")
    Message.objects.create_queue("orders", dead_letter_queue="dead")
    pk = queue("orders").send(7)

    drain(refuse, retry=NoRetry())

    assert [n for n, _, _ in attempts(pk)] == [1]
    assert queue("dead").attempts(pk) == queue("orders").attempts(pk)


def test_an_attempt_whose_lease_was_lost_is_not_kept(orders):
    pk = orders.send(7)
    [message] = orders.read(vt=0, in_transaction=True)
    orders.read(in_transaction=True)

    failure = Failure.of(ValueError("late"), 1)
    settled = queue("orders").retry({message.receipt: 0}, failures={message.receipt: failure})

    assert settled.lost == [message.receipt]
    assert attempts(pk) == []


def fail(orders: BoundQueue, number: int, text: str = "no") -> None:
    """Let the next message fail once; it is readable again at once."""
    [message] = orders.read(in_transaction=True)
    failure = Failure.of(ValueError(text), number)
    orders.retry({message.receipt: 0}, failures={message.receipt: failure})


def store(orders: BoundQueue, message_id: int) -> None:
    found = Message.objects.resolve(orders.name)
    Attempt.objects.create(queue=found, message_id=message_id, attempt=1)


def test_the_last_attempts_are_kept_only(orders, pgqueue):
    pgqueue(ATTEMPTS_KEPT=3)
    first = orders.send(1)
    second = orders.send(2, delay=600)
    store(orders, second)

    for number in range(1, 8):
        fail(orders, number)

    assert [n for n, _, _ in attempts(first)] == [5, 6, 7]
    assert [n for n, _, _ in attempts(second)] == [1]


def test_with_attempts_kept_0_no_attempt_is_kept(orders, pgqueue):
    pgqueue(ATTEMPTS_KEPT=0)
    pk = orders.send(1)

    fail(orders, 1)

    assert attempts(pk) == []


def test_a_long_traceback_keeps_its_end(orders, pgqueue):
    pgqueue(TRACEBACK_LENGTH=50)
    pk = orders.send(1)

    fail(orders, 1, "x" * 200 + "the end")

    [attempt] = orders.attempts(pk)
    assert len(attempt.traceback) == len(attempt.message) == 50
    assert attempt.traceback.endswith("the end\n")


def test_secrets_are_masked_in_every_error_that_is_stored(committed_orders, drain, pgqueue):
    pgqueue(MASK=[r"sk_\w+"])
    pk = committed_orders.send(7)

    def charge(message: Message) -> None:
        raise CardRefused("key sk_live_123 was refused")

    drain(charge, retry=NoRetry())

    [attempt] = committed_orders.attempts(pk)
    error = ArchivedMessage.objects.get(pk=pk).error or ""
    assert attempt.message == "key ******** was refused"
    assert "key ******** was refused" in attempt.traceback
    assert "key ******** was refused" in error
    assert "sk_live_123" not in attempt.traceback.split("CardRefused:")[-1] + error[:60]


def test_nul_and_lone_surrogates_can_be_stored(orders):
    pk = orders.send(1)

    fail(orders, 1, "a\x00b\ud800")

    assert orders.attempts(pk)[0].message == "a\\0b\\ud800"


def pruned(name: str, before: dt.datetime | None = None) -> int:
    """The number of attempts that maintenance deletes."""
    work = Work(Message.objects.resolve(name), 1, 1, lambda removed: None, before=before)
    there = Attempt.objects.count()
    upkeep.prune_attempts(work)
    return there - Attempt.objects.count()


def test_attempts_go_with_their_message(orders, sql):
    gone, stays = orders.send_batch([1, 2])
    store(orders, gone)
    store(orders, stays)
    Message.objects.filter(pk=gone).delete()

    assert pruned("orders") == 1

    assert attempts(gone) == []
    assert len(attempts(stays)) == 1


def test_attempts_of_a_message_that_was_moved_stay(db):
    for name in ("dead", "elsewhere"):
        Message.objects.create_queue(name)
    Message.objects.create_queue("orders", dead_letter_queue="dead")
    orders = queue("orders")
    pk = orders.send(1)
    store(orders, pk)

    [message] = orders.read()
    message.reject("no")
    assert pruned("orders") == 0
    queue("dead").redrive(to="elsewhere")
    assert pruned("orders") == 0
    queue("elsewhere").delete(pk)
    assert pruned("orders") == 1


def test_pruning_deletes_old_attempts_page_by_page(orders, monkeypatch, sql):
    monkeypatch.setattr(upkeep, "PRUNED", 2)
    old = dt.datetime(2020, 1, 1, tzinfo=dt.timezone.utc)
    for message_id in range(10**12, 10**12 + 5):
        store(orders, message_id)
    sql("UPDATE pgqueue_attempt SET at = %s WHERE message_id < %s", [old, 10**12 + 5])
    store(orders, 10**12 + 9)

    assert pruned("orders", before=old + dt.timedelta(days=1)) == 5
    assert Attempt.objects.count() == 1


def test_pruning_keeps_the_newest_attempts_of_a_queue(orders, pgqueue, monkeypatch):
    monkeypatch.setattr(upkeep, "PRUNED", 2)
    pgqueue(ATTEMPTS_PER_QUEUE=3)
    Message.objects.create_queue("mails")
    failed = orders.send_batch(range(8))
    for pk in failed:
        store(orders, pk)
    mail = queue("mails").send(1)
    store(queue("mails"), mail)

    assert pruned("orders") == 5

    kept = Attempt.objects.order_by("pk").values_list("message_id", flat=True)
    assert list(kept) == [*failed[-3:], mail]


def test_maintenance_prunes(committed_orders):
    store(committed_orders, 10**12)

    committed_orders.maintain()

    assert Attempt.objects.count() == 0


def test_dropping_a_queue_takes_its_attempts(orders):
    pk = orders.send(1)
    store(orders, pk)

    Queue.objects.get(name="orders").delete()

    assert not Attempt.objects.exists()


def test_look_ups_go_by_an_index(orders):
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute("EXPLAIN SELECT * FROM pgqueue_attempt WHERE message_id = 7")
        plan = "\n".join(row[0] for row in cursor.fetchall())

    assert "pgqueue_attempt_message" in plan
    assert (settings.ATTEMPTS_KEPT, settings.ATTEMPTS_PER_QUEUE) == (20, 100_000)
