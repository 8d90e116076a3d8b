"""Messages as a model."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest
from asgiref.sync import async_to_sync

from django_pgqueue.errors import ImmutableMessage, LeaseLost
from django_pgqueue.models import ArchivedMessage, LiveMessage, Message
from tests.conftest import run_sql
from tests.factories import MessageFactory, QueueFactory


def test_a_message_is_never_changed(orders):
    orders.send({"order": 7})
    [read] = orders.read()
    stored = Message.objects.get()

    for message in (read, stored):
        message.body = {"order": 8}
        with pytest.raises(ImmutableMessage):
            message.save()
    with pytest.raises(ImmutableMessage):
        Message.objects.update(body=1)
    with pytest.raises(ImmutableMessage):
        Message.objects.bulk_update([stored], ["body"])

    assert Message.objects.get().body == {"order": 7}


@pytest.mark.parametrize(
    ("settle", "arguments", "kept"),
    [
        ("ack", {}, ("COMPLETED", None)),
        ("nack", {"delay": 0, "reason": "the bank is closed"}, ("RETRYABLE", "the bank is closed")),
        ("reject", {"reason": "no such order"}, ("FAILED", "no such order")),
    ],
)
def test_a_message_is_settled_by_an_async_twin(orders, sql, settle, arguments, kept):
    orders.send(1)
    [late] = orders.read(vt=0)
    [message] = orders.read(vt=60)
    twin, late_twin = getattr(message, f"a{settle}"), getattr(late, f"a{settle}")
    assert inspect.signature(twin) == inspect.signature(getattr(message, settle))

    with pytest.raises(LeaseLost):
        async_to_sync(late_twin)(**arguments)
    async_to_sync(twin)(**arguments)

    tables = ("pgqueue_archive", "pgqueue_deferred")
    assert sql(" UNION ALL ".join(f"SELECT state, error FROM {t}" for t in tables)) == [kept]


def test_an_archived_message_is_never_changed(orders):
    orders.archive(orders.send(1))

    with pytest.raises(ImmutableMessage):
        ArchivedMessage.objects.get().save()


def test_deleting_messages_by_the_orm_takes_them_from_wherever_they_stand(db):
    kept = MessageFactory()
    for queue in (QueueFactory(), QueueFactory(unlogged=True)):
        doomed = [
            Message.objects.send(queue, "leased"),
            Message.objects.send(queue, "delayed", delay=60),
            Message.objects.send(queue, "archived"),
            Message.objects.send(queue, "ready"),
        ]
        Message.objects.read(queue)
        Message.objects.archive(queue, doomed[2])

        assert Message.objects.filter(queue=queue).delete() == (4, {"django_pgqueue.Message": 4})

    assert [m.pk for m in Message.objects.all()] == [kept.pk]
    assert [m.pk for m in LiveMessage.objects.all()] == [kept.pk]
    assert not ArchivedMessage.objects.exists()


def test_deleting_one_message_deletes_that_one(orders):
    one, two = orders.send_batch([1, 2])

    Message.objects.get(pk=one).delete()

    assert [m.id for m in orders.read(qty=5)] == [two]
    assert Message.objects.count() == 1


def test_a_message_is_found_by_its_id_alone(orders):
    pk = orders.send({"order": 7})

    assert Message.objects.get(pk=pk).body == {"order": 7}
    assert Message.objects.filter(body__order=7).get().pk == pk
    assert str(Message.objects.get(pk=pk)) == f"message {pk}"


def test_a_read_message_can_be_pickled_and_copied(orders):
    orders.send({"order": 7})
    [message] = orders.read()

    for twin in (pickle.loads(pickle.dumps(message)), copy.deepcopy(message)):
        assert twin == message
        assert (twin.body, twin.receipt, twin.queue_name) == (
            {"order": 7},
            message.receipt,
            "orders",
        )
        assert twin.queue.name == "orders"


def test_a_read_message_is_known_to_be_stored_where_it_was_read(orders):
    pk = orders.send({"order": 7}, unique="once")

    [message] = orders.read()

    assert message.unique_key == "once"  # a column that reads leave out
    assert (message._state.db, message._state.adding) == ("default", False)
    assert message.delete() == (1, {"django_pgqueue.Message": 1})
    assert not Message.objects.filter(pk=pk).exists()


def test_reading_makes_one_query_for_any_number_of_messages(orders, django_assert_num_queries):
    orders.send_batch(range(50))

    with django_assert_num_queries(2):  # one query for the queue, since a transaction uses no cache
        for message in orders.read(qty=50):
            assert message.queue.name == message.queue_name == "orders"


def test_every_live_state_can_be_seen_in_one_place(orders):
    orders.send_batch([1, 2], group="g")
    orders.send(3, delay=60)
    orders.read()

    states = LiveMessage.objects.order_by("pk").values_list("state", "queue__name", "group_key")

    assert list(states) == [
        ("PROCESSING", "orders", "g"),
        ("PENDING", "orders", "g"),
        ("SCHEDULED", "orders", None),
    ]


def test_the_body_is_written_once_and_stays_where_it_is(orders):
    pk = orders.send({"order": 7})

    def place() -> tuple[str, str]:
        return run_sql("SELECT ctid::text, xmin::text FROM pgqueue_message WHERE id = %s", [pk])[0]

    before = place()
    [message] = orders.read()
    orders.set_vt(message, 60)
    orders.archive(message)

    assert place() == before
