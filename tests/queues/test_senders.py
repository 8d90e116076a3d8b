"""A rule binds every sender of messages, or docs/schema.md says whom it binds."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import DatabaseError, connection, transaction
from django.test import override_settings

from django_pgqueue import pgmq, queue
from django_pgqueue.errors import InvalidArgument, InvalidMessage, QueueNotFound
from django_pgqueue.models import Message, Queue
from tests.conftest import run_sql

PAGE = Path(__file__).resolve().parents[2] / "docs" / "schema.md"
LATEST = dt.datetime(9999, 12, 31, tzinfo=dt.timezone.utc)
LONG_AGO = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
NEXT_CENTURY = dt.datetime(2100, 1, 1, tzinfo=dt.timezone.utc)

#: Sends a message with these columns to a queue, which is given by its name and its id.
Sender = Callable[[str, int, dict[str, Any]], None]


def as_arguments(columns: dict[str, Any]) -> dict[str, Any]:
    names = {"scheduled_at": "delay", "expires_at": "expires", "group_key": "group"}
    given = {names.get(name, name): value for name, value in columns.items()}
    if given.get("expires") == LONG_AGO:
        given["expires"] = 1e-6  # operations refuse a time that has passed
    return given


def by_send(name: str, number: int, columns: dict[str, Any]) -> None:
    given = as_arguments(columns)
    if key := given.pop("unique_key", None):
        given["unique"] = key
    queue(name).send(**{"body": 1, **given})


def by_send_batch(name: str, number: int, columns: dict[str, Any]) -> None:
    given = as_arguments(columns)
    if key := given.pop("unique_key", None):
        given["unique"] = [key]
    queue(name).send_batch([given.pop("body", 1)], **given)


@override_settings(PGQUEUE={"COPY_THRESHOLD": 0})
def by_large_send_batch(name: str, number: int, columns: dict[str, Any]) -> None:
    by_send_batch(name, number, columns)


def by_save(name: str, number: int, columns: dict[str, Any]) -> None:
    Message(queue_id=number, **columns).save()


def by_bulk_create(name: str, number: int, columns: dict[str, Any]) -> None:
    Message.objects.bulk_create([Message(queue_id=number, **columns)])


def as_row(number: int, columns: dict[str, Any]) -> dict[str, Any]:
    texts = {k: json.dumps(v) for k, v in columns.items() if k in ("headers", "body")}
    return {"queue_id": number, **columns, **texts}


def by_insert(name: str, number: int, columns: dict[str, Any]) -> None:
    row = as_row(number, columns)
    places = ", ".join(["%s"] * len(row))
    run_sql(
        f"INSERT INTO pgqueue_message ({', '.join(row)}) VALUES ({places}) RETURNING id",
        list(row.values()),
    )


def by_copy(name: str, number: int, columns: dict[str, Any]) -> None:
    row = as_row(number, columns)
    text = f"COPY pgqueue_message ({', '.join(row)}) FROM STDIN"
    with connection.cursor() as cursor, cursor.copy(text) as copy:
        copy.write_row(list(row.values()))


def by_pgmq(name: str, number: int, columns: dict[str, Any]) -> None:
    given = dict(columns)
    headers = given.pop("headers", None)
    if key := given.pop("group_key", None):
        headers = {"x-pgmq-group": key}
    body, at = json.dumps(given.pop("body", 1)), given.pop("scheduled_at", LONG_AGO)
    assert not given, "pgmq.send has no argument for it"
    run_sql(
        "SELECT pgmq.send(%s, %s::jsonb, %s::jsonb, %s::timestamptz)",
        [name, body, json.dumps(headers) if headers else None, at],
    )


#: The senders of each column of the page's table.
SENDERS: dict[str, list[Sender]] = {
    "`send`, `send_batch`": [by_send, by_send_batch, by_large_send_batch],
    "the ORM": [by_save, by_bulk_create],
    "SQL, COPY": [by_insert, by_copy],
    "PGMQ's functions": [by_pgmq],
}


def is_refused(send: Sender, columns: dict[str, Any], number: int | None = None) -> bool:
    """Whether the message is refused; then there is no message."""
    known = Queue.objects.get(name="orders").pk
    name = "orders" if number is None else "nowhere"
    before = Message.objects.count()
    try:
        with transaction.atomic():
            send(name, known if number is None else number, columns)
    except (InvalidArgument, InvalidMessage, QueueNotFound, DatabaseError, psycopg.Error):
        assert Message.objects.count() == before
        return True
    assert Message.objects.count() == before + 1
    return False


def refuses(**columns: Any) -> Callable[[Sender], bool]:
    return lambda send: is_refused(send, columns)


def refuses_an_unknown_queue(send: Sender) -> bool:
    return is_refused(send, {}, number=2**30)


def sends_a_key_once(send: Sender) -> bool:
    number = Queue.objects.get(name="orders").pk
    for _ in range(2):
        send("orders", number, {"unique_key": "receipt 7"})
    return Message.objects.count() == 1


def hides(**columns: Any) -> Callable[[Sender], bool]:
    def is_hidden(send: Sender) -> bool:
        send("orders", Queue.objects.get(name="orders").pk, columns)
        assert Message.objects.count() == 1
        return queue("orders").read(in_transaction=True) == []

    return is_hidden


def keeps_the_order(send: Sender) -> bool:
    number = Queue.objects.get(name="orders").pk
    for body in (1, 2):
        send("orders", number, {"body": body, "group_key": "customer 7"})
    return [each.body for each in queue("orders").read(qty=2, in_transaction=True)] == [1]


#: The rules of the page, each with functions that say whether it binds a sender.
RULES: dict[str, list[Callable[[Sender], bool]]] = {
    "the queue exists": [refuses_an_unknown_queue],
    "`priority` is from -100 to 100": [refuses(priority=101), refuses(priority=-101)],
    "a group's key has up to 255 characters": [refuses(group_key="x" * 256)],
    "a unique key has up to 255 characters": [refuses(unique_key="x" * 256)],
    "`scheduled_at` is in the range of times": [refuses(scheduled_at=LATEST)],
    "`expires_at` is in the range of times": [refuses(expires_at=LATEST)],
    "`body` and `headers` have no NUL": [refuses(body="\0"), refuses(headers={"a": "\0"})],
    "`headers` are an object": [refuses(headers=[1]), refuses(headers="text")],
    "of messages with a [unique key](once.md) one is sent": [sends_a_key_once],
    "before `scheduled_at` no read delivers it": [hides(scheduled_at=NEXT_CENTURY)],
    "after `expires_at` [no read delivers it](sending.md#expiry)": [hides(expires_at=LONG_AGO)],
    "messages of a [group](groups.md) are delivered in order": [keeps_the_order],
}


def told() -> dict[str, dict[str, str]]:
    """The table of the page: for each rule, what it says about each kind of sender."""
    text = PAGE.read_text().partition("## Whom a rule binds")[2].partition("\n## ")[0]
    rows = [re.split(r" *\| *", line.strip("| ")) for line in text.splitlines() if line[:1] == "|"]
    [first, _line, *rest] = rows
    return {row[0]: dict(zip(first[1:], row[1:], strict=True)) for row in rest}


CASES = [
    pytest.param(rule, kind, send, id=f"{rule} {send.__name__}")
    for rule, cells in told().items()
    for kind, senders in SENDERS.items()
    for send in senders
    if cells[kind] != "has none"
]


def test_the_page_has_every_rule_and_every_sender():
    assert told().keys() == RULES.keys()
    assert all(cells.keys() == SENDERS.keys() for cells in told().values())


@pytest.mark.parametrize(("rule", "kind", "send"), CASES)
def test_a_rule_binds_the_senders_that_the_page_names(orders, rule, kind, send):
    if send is by_pgmq:
        with connection.cursor() as cursor:
            pgmq.install(cursor, Queue)

    for binds in RULES[rule]:
        assert binds(send) == (told()[rule][kind] == "yes")


@pytest.mark.parametrize("headers", [[1], "text", 5, True])
def test_headers_that_are_no_object_stop_no_message(db, headers):
    Message.objects.create_queue("dead")
    orders = Message.objects.create_queue("orders", dead_letter_queue="dead", max_deliveries=1)
    by_save("orders", orders.pk, {"headers": headers, "body": 7})

    [message] = queue("orders").read(vt=0, in_transaction=True)
    assert message.headers == headers
    assert queue("orders").read(in_transaction=True) == []

    [dead] = queue("dead").read(vt=0, in_transaction=True)
    assert dead.headers["x-dead-letter"]["source"] == "orders"
    assert queue("dead").redrive() == 1
    assert [each.body for each in queue("orders").read(in_transaction=True)] == [7]
