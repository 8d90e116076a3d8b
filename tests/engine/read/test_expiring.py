"""Tests of messages with ``expires``: none is delivered too late, by any reader."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import pytest
from django.utils import timezone

from django_pgqueue import signals
from django_pgqueue.engine.settle.outcomes import end_expired
from django_pgqueue.errors import InvalidArgument, MessageExpired
from django_pgqueue.models import ArchivedMessage, BoundQueue, LiveMessage, Message
from django_pgqueue.types import State
from tests.actors import Actor, begin, call, commit
from tests.conftest import rolled_back, run_sql
from tests.factories import QueueFactory
from tests.hearing import heard
from tests.messages import ids

HOUR = dt.timedelta(hours=1)
#: A message with this ``expires`` has expired by the next statement.
SOON = 1e-6


def let_expire(*pks: int) -> None:
    """Let the time pass after which these messages expire."""
    run_sql(
        "UPDATE pgqueue_message SET expires_at = statement_timestamp() - interval '1 s'"
        " WHERE id = ANY(%s)",
        [list(pks)],
    )


def outcomes() -> dict[int, str]:
    return dict(ArchivedMessage.objects.values_list("id", "state"))


READERS: dict[str, Callable[[BoundQueue], list[Message]]] = {
    "read": lambda queue: queue.read(qty=3),
    "read_of_all": lambda queue: queue.read(qty=None),
    "read_with_condition": lambda queue: queue.read(qty=3, conditional={"a": 1}),
    "read_in_transaction": lambda queue: queue.read(qty=3, in_transaction=True),
    "read_with_poll": lambda queue: queue.read_with_poll(qty=3, max_poll_seconds=0),
    "read_grouped": lambda queue: queue.read_grouped(qty=3),
    "read_grouped_rr": lambda queue: queue.read_grouped_rr(qty=3),
    "pop": lambda queue: queue.pop(3),
}


@pytest.fixture(params=READERS.values(), ids=READERS)
def reader(request):
    return request.param


# what is sent


@pytest.mark.parametrize("many", [False, True], ids=["send", "send_batch"])
@pytest.mark.parametrize("key", [None, "k"], ids=["plain", "unique"])
@pytest.mark.parametrize(
    "expires", [60, dt.timedelta(minutes=1), timezone.now() + HOUR], ids=["seconds", "span", "at"]
)
@pytest.mark.parametrize("threshold", [1, 500], ids=["copy", "insert"])
def test_every_way_to_send_stores_when_the_message_expires(
    orders, settings, many, key, expires, threshold
):
    settings.PGQUEUE = {"COPY_THRESHOLD": threshold}
    if many:
        [pk] = orders.send_batch([1], expires=expires, unique=key and [key])
    else:
        pk = orders.send(1, expires=expires, unique=key)

    message = Message.objects.get(pk=pk)

    if isinstance(expires, dt.datetime):
        assert message.expires_at == expires
    else:
        assert abs((message.expires_at - message.enqueued_at).total_seconds() - 60) < 5


def test_publish_gives_every_copy_the_moment(orders):
    QueueFactory(name="audit")
    for name in ("orders", "audit"):
        Message.objects.bind("order.#", name)

    at = timezone.now() + HOUR

    Message.objects.publish("order.paid", 1, expires=at)
    Message.objects.publish_batch("order.paid", [2, 3], expires=at)

    assert list(Message.objects.values_list("expires_at", flat=True)) == [at] * 6


@pytest.mark.parametrize("expires", [0, -1, dt.timedelta(0), dt.timedelta(-1)], ids=repr)
def test_a_message_cannot_expire_before_it_is_sent(orders, expires):
    with pytest.raises(InvalidArgument, match="expires must be more than zero seconds"):
        orders.send(1, expires=expires)
    with pytest.raises(InvalidArgument, match="expires must be more than zero seconds"):
        orders.send_batch([1], expires=expires)

    assert not LiveMessage.objects.exists()


@pytest.mark.parametrize("send", ["send", "send_batch"])
def test_a_message_cannot_expire_at_a_time_that_has_passed(orders, send):
    with pytest.raises(InvalidArgument, match="expires must be in the future, not datetime"):
        getattr(orders, send)([1], expires=timezone.now())

    assert not LiveMessage.objects.exists()


# who reads


def test_no_reader_gets_a_message_that_has_expired_and_all_get_the_others(orders, reader):
    late = orders.send_batch([{"a": 1, "late": n} for n in range(5)], expires=HOUR)
    soon = orders.send_batch([{"a": 1, "soon": n} for n in range(2)], expires=HOUR)
    never = orders.send({"a": 1})
    let_expire(*late)

    found = reader(orders)

    assert ids(found) == [*soon, never]
    assert outcomes() == dict.fromkeys(late, "EXPIRED")


def test_no_reader_gets_an_expired_head_and_its_followers_keep_their_order(orders, reader):
    group = {"group": "g", "expires": HOUR}
    pks = [orders.send({"a": 1, "place": n}, **group) for n in range(5)]
    let_expire(pks[0], pks[1], pks[3])

    first = reader(orders)
    orders.archive([message for message in first if LiveMessage.objects.filter(pk=message.id)])
    second = reader(orders)

    assert [message.id for message in [*first, *second]] == [pks[2], pks[4]]
    expired = [pk for pk, state in sorted(outcomes().items()) if state == "EXPIRED"]
    assert expired == [pks[0], pks[1], pks[3]]


def test_an_expired_message_that_is_due_again_is_not_delivered_again(orders, reader):
    [again, in_time] = orders.send_batch([{"a": 1}, {"a": 1}], expires=HOUR)
    orders.read(qty=2, vt=0)
    let_expire(again)

    found = reader(orders)

    assert ids(found) == [in_time]
    [archived] = ArchivedMessage.objects.filter(pk=again)
    assert (archived.state, archived.read_ct) == ("EXPIRED", 1)


def test_a_delayed_message_may_expire_before_its_turn(orders, reader):
    pk = orders.send({"a": 1}, delay=60, expires=30)
    run_sql("UPDATE pgqueue_deferred SET vt = vt - interval '61 s'")
    let_expire(pk)

    assert reader(orders) == []
    assert outcomes() == {pk: "EXPIRED"}


@pytest.mark.parametrize("qty", [10, 40], ids=["one_by_one", "in_a_batch"])
def test_a_read_behind_the_last_one_leaves_out_what_has_expired(committed_orders, qty):
    pks = committed_orders.send_batch(list(range(3 * qty)), expires=HOUR)
    late = pks[qty : 2 * qty : 2]
    let_expire(*late)
    assert len(committed_orders.read(qty=qty)) == qty

    found = committed_orders.read(qty=qty)

    assert sorted(ids(found)) == [pk for pk in pks[qty:] if pk not in late][:qty]
    assert outcomes() == dict.fromkeys(late, "EXPIRED")
    assert sorted(committed_orders.archive(found)) == ids(found)


def test_a_message_of_a_batch_lease_that_ran_out_is_not_delivered_again(committed_orders):
    committed_orders.send(0)
    pks = committed_orders.send_batch(list(range(40)), expires=HOUR)
    committed_orders.read(qty=1)
    assert len(committed_orders.read(qty=40, vt=0)) == 40
    assert run_sql("SELECT cardinality(ids) FROM pgqueue_lease") == [(40,)]
    let_expire(*pks[:30])

    found = committed_orders.read(qty=40)

    assert sorted(message.id for message in found) == pks[30:]
    assert outcomes() == dict.fromkeys(pks[:30], "EXPIRED")


def test_what_is_in_flight_when_it_expires_is_left_alone(orders):
    pk = orders.send(1, expires=HOUR)
    [message] = orders.read()
    let_expire(pk)

    assert orders.read() == []
    message.extend(60)
    message.ack()
    assert outcomes() == {pk: "COMPLETED"}


def test_a_retry_after_the_moment_expires_with_its_attempts_and_its_last_error(orders):
    pk = orders.send(1, expires=HOUR)
    [message] = orders.read()
    message.nack(0, "out of stock")
    let_expire(pk)

    assert orders.read() == []
    [archived] = ArchivedMessage.objects.all()
    assert (archived.state, archived.read_ct, archived.attempts) == ("EXPIRED", 1, 1)
    assert archived.error == "out of stock"
    assert archived.first_read_at is not None


def test_a_message_that_expired_unread_has_no_deliveries(orders):
    orders.send(1, expires=SOON)

    orders.read()

    [archived] = ArchivedMessage.objects.all()
    assert (archived.read_ct, archived.attempts, archived.error) == (0, 0, None)
    assert (archived.first_read_at, archived.last_read_at) == (None, None)
    assert archived.body == 1


def test_a_message_whose_deliveries_ran_out_is_failed_even_if_it_has_expired(db):
    QueueFactory(name="orders", max_deliveries=1)
    orders = BoundQueue("orders")
    ran_out, expired = orders.send_batch([1, 2], expires=HOUR)
    orders.read(qty=1, vt=0)
    let_expire(ran_out, expired)

    assert orders.read(qty=10) == []
    assert outcomes() == {ran_out: "FAILED", expired: "EXPIRED"}


def test_a_read_that_finds_only_expired_messages_fails_those_whose_deliveries_ran_out(db):
    QueueFactory(name="orders", max_deliveries=1)
    orders = BoundQueue("orders")
    ran_out, expired = orders.send(1, expires=HOUR), orders.send(2, delay=60, expires=HOUR)
    orders.read(qty=1, vt=0)
    run_sql("UPDATE pgqueue_deferred SET vt = vt - interval '1 day' WHERE id = %s", [expired])
    let_expire(ran_out, expired)

    assert orders.read(qty=1) == []
    assert outcomes() == {ran_out: "FAILED", expired: "EXPIRED"}


@pytest.mark.parametrize("group", [None, "g"], ids=["plain", "grouped"])
def test_one_read_archives_a_long_backlog_in_few_statements(
    orders, group, django_assert_max_num_queries
):
    late = orders.send_batch(list(range(3000)), expires=SOON, group=group)
    in_time = orders.send("in time", group=group)

    with django_assert_max_num_queries(40):
        [message] = orders.read()

    assert message.id == in_time
    assert outcomes() == dict.fromkeys(late, "EXPIRED")


def test_followers_that_expired_are_archived_when_their_head_is_read(orders):
    head, late, behind = (orders.send(n, group="g", expires=HOUR) for n in range(3))
    let_expire(late)

    found = orders.read_grouped(qty=3)

    assert ids(found) == [head, behind]
    assert outcomes() == {late: "EXPIRED"}
    assert orders.archive(found) == [head, behind]


def test_a_delayed_message_that_expired_in_its_group_is_archived_when_it_is_due(orders):
    found = orders.send(0, expires=SOON, priority=1)
    head, delayed, behind = (orders.send(n, group="g", expires=SOON) for n in range(3))
    orders.set_vt([delayed], 60)

    assert orders.read() == []
    assert outcomes() == dict.fromkeys([found, head, behind], "EXPIRED")

    orders.set_vt([delayed], 0)
    assert orders.read() == []
    assert outcomes() == dict.fromkeys([found, head, delayed, behind], "EXPIRED")


def test_a_read_says_what_it_archived(orders):
    late = orders.send_batch([1, 2, 3], expires=SOON)

    with heard(signals.messages_expired) as told:
        orders.read_grouped(qty=5)

    assert [(each["sender"], sorted(each["ids"])) for each in told] == [("orders", late)]


def test_peek_shows_the_moment_of_messages_that_a_read_would_archive_too(orders):
    pk = orders.send(1, expires=SOON)
    orders.send(2)

    first, second = orders.peek(qty=2)

    assert first.expires_at == Message.objects.get(pk=pk).expires_at < timezone.now()
    assert second.expires_at is None
    assert outcomes() == {}


def test_a_message_tells_its_moment_without_a_query(orders, django_assert_num_queries):
    at = timezone.now() + HOUR
    orders.send(1, expires=at)
    orders.send(2)
    found = orders.read(qty=2)

    with django_assert_num_queries(0):
        assert [message.expires_at for message in found] == [at, None]


def test_the_result_of_an_expired_message_says_so(orders):
    pk = orders.send(1, expires=SOON)
    orders.read()

    with pytest.raises(MessageExpired, match=r"expired before"):
        orders.result(pk)


# where it goes


def test_a_dead_letter_does_not_expire_and_neither_does_what_is_redriven(db):
    dead = QueueFactory(name="orders.dead")
    QueueFactory(name="orders", dead_letter_queue=dead)
    orders, letters = BoundQueue("orders"), BoundQueue("orders.dead")
    pk = orders.send(1, expires=HOUR)
    [message] = orders.read()
    message.reject("no such customer")

    assert Message.objects.get(pk=pk).expires_at is None
    assert letters.redrive() == 1
    assert Message.objects.get(pk=pk).expires_at is None


def test_redrive_clears_the_moment_of_a_message_that_was_sent_to_the_queue_itself(orders):
    QueueFactory(name="elsewhere")
    pk = orders.send(1, expires=SOON)

    orders.redrive(to="elsewhere")

    [message] = BoundQueue("elsewhere").read()
    assert (message.id, message.expires_at) == (pk, None)


@pytest.mark.parametrize("state", [State.EXPIRED, None], ids=str)
def test_replay_sends_expired_messages_again_without_a_moment(orders, state):
    orders.send(1, expires=SOON)
    orders.read()

    assert orders.replay(state=state) == 1
    [message] = orders.read()
    assert (message.body, message.expires_at) == (1, None)


# two at once


def test_a_reader_that_was_slow_to_archive_does_not_take_another_readers_lease_away(orders):
    """Between the two statements of a read the lease may run out, and another reader may come."""
    pk = orders.send(1, expires=HOUR)
    [slow] = orders.read(vt=0)
    [held] = orders.read()
    opened = Message.objects.resolve("orders").opened

    assert end_expired(opened, [slow.receipt]) == []
    assert outcomes() == {}
    assert end_expired(opened, [held.receipt]) == [pk]


@pytest.mark.parametrize("groups", [0, 20])
def test_readers_at_once_archive_each_expired_message_once(committed_orders, actors, groups):
    group = [f"g{n % groups}" for n in range(2000)] if groups else None
    pks = committed_orders.send_batch(list(range(2000)), expires=SOON, group=group)
    readers: list[Actor] = actors(4)

    for future in [reader.start(call, "read", "orders", qty=5) for reader in readers]:
        assert future.result(timeout=60) == []
    assert committed_orders.read() == []

    assert outcomes() == dict.fromkeys(pks, "EXPIRED")
    assert not LiveMessage.objects.exists()


def test_a_message_that_another_transaction_holds_is_left_to_it(committed_orders, actor):
    held, late = committed_orders.send_batch([1, 2], expires=HOUR)
    actor.do(begin)
    assert len(actor.do(call, "read", "orders", qty=1, in_transaction=True)) == 1
    let_expire(late)
    run_sql("UPDATE pgqueue_message SET expires_at = statement_timestamp() WHERE id = %s", [held])

    assert committed_orders.read(qty=5) == []
    assert outcomes() == {late: "EXPIRED"}
    actor.do(commit)
    assert committed_orders.archive(held) == [held]
    assert outcomes()[held] == "COMPLETED"


def test_a_rollback_brings_an_expired_message_back_to_expire_again(committed_orders):
    pk = committed_orders.send(1, expires=SOON)

    with rolled_back():
        assert committed_orders.read(in_transaction=True) == []
        assert outcomes() == {pk: "EXPIRED"}

    assert outcomes() == {}
    assert committed_orders.read() == []
    assert outcomes() == {pk: "EXPIRED"}


def test_a_reader_with_old_settings_of_the_queue_does_not_deliver_an_expired_message(
    committed_orders, actor
):
    assert actor.do(call, "read", "orders") == []

    committed_orders.send(1, expires=SOON)

    assert actor.do(call, "read", "orders") == []
    assert list(outcomes().values()) == ["EXPIRED"]
