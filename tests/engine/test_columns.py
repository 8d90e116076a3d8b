"""The list of a message's columns: it agrees with the table and with the classes that repeat it."""

from __future__ import annotations

import inspect

import pytest

from django_pgqueue.engine.columns import COLUMNS, COMMON, KEPT
from django_pgqueue.engine.rows import Delivery
from django_pgqueue.engine.send import sending
from django_pgqueue.models import Message, queue
from tests.conftest import run_sql

#: A value for each type.
VALUES = {"jsonb": {"order": 7}, "smallint": 5, "text": "eu"}


@pytest.mark.django_db
def test_the_list_has_the_columns_of_the_table_with_their_types():
    stored = run_sql(
        "SELECT attname, format_type(coalesce(nullif(t.typbasetype, 0), t.oid), NULL) "
        "FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid "
        "WHERE attrelid = 'pgqueue_message'::regclass AND attnum > 0 AND NOT attisdropped"
    )

    types = {"timestamptz": "timestamp with time zone"}
    listed = {column.name: types.get(column.type, column.type) for column in COLUMNS}
    assert listed == dict(stored)


def test_a_delivery_has_the_columns_that_a_read_returns_in_the_order_of_the_list():
    read = [column.name for column in COLUMNS if column.read]

    first = Delivery._fields.index(read[0])
    assert list(Delivery._fields[first : first + len(read)]) == read


def test_a_message_has_the_columns_that_are_not_of_dead_letters_only():
    fields = {field.column for field in Message._meta.concrete_fields}

    assert fields == {column.name for column in COLUMNS} - {"failure", "source_id"}


def test_a_send_has_an_argument_for_each_column_with_one_value_for_all_messages():
    for send in (sending.send, sending.send_batch):
        assert {column.name for column in COMMON} <= set(inspect.signature(send).parameters)


@pytest.mark.django_db
@pytest.mark.parametrize("again", ["moved", "replayed", "dead-lettered"])
def test_a_message_keeps_its_columns_when_it_is_sent_again(again):
    mails = Message.objects.create_queue("mails")
    Message.objects.create_queue("orders", dead_letter_queue="mails")
    orders = queue("orders")
    common = {column.name: VALUES[column.type] for column in COMMON}
    pk = orders.send(VALUES["jsonb"], group=VALUES["text"], **common)

    if again == "moved":
        orders.redrive(to="mails")
    elif again == "replayed":
        orders.archive(pk)
        orders.replay(to="mails")
    else:
        [message] = orders.read(in_transaction=True)
        message.reject()

    [kept] = Message.objects.filter(queue=mails).values(*(column.name for column in KEPT))
    assert kept == {column.name: VALUES[column.type] for column in KEPT}
