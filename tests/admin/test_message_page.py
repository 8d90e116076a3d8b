"""The page of one message: its life, where it came from, and what it must not show."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import pytest
from django.test import Client

from django_pgqueue import queue
from django_pgqueue.admin.masking import mask, mask_text
from django_pgqueue.models import BoundQueue, Message, Queue
from tests.admin.conftest import page, rows


def field(client: Client, pk: int, name: str, model: str = "message") -> str:
    """The text of a field on the page."""
    text = page(client, model, "change", pk)
    part = text.partition(f"field-{name}")[2].partition('<div class="form-row')[0]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", part.partition(">")[2])).split())


def life(client: Client, pk: int) -> str:
    """The timeline without its moments."""
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ?", "", field(client, pk, "life"))


def test_timeline_of_a_message_that_was_done(
    operator: Client, orders: BoundQueue, sql: Any
) -> None:
    pk = orders.send(1)
    orders.archive(orders.read())
    sql(
        "UPDATE pgqueue_archive SET first_read_at = enqueued_at + interval '90 s', "
        "last_read_at = enqueued_at + interval '100 s', read_ct = 2, "
        "archived_at = enqueued_at + interval '100.25 s'"
    )

    assert life(operator, pk) == (
        "Timeline: Sent First read, after waiting 1 min 30 s Read for the 2nd time 10.0 s "
        "Completed, after running 250 ms"
    )


def test_timeline_says_what_comes_next(operator: Client, orders: BoundQueue) -> None:
    ready = orders.send(1)
    read = orders.read(vt=600)
    delayed = orders.send(2, delay=7200)

    assert "In flight: the lease ends then, in 9 min" in life(operator, ready)
    assert "Readable then, in 1 h 59 min" in life(operator, delayed)
    orders.set_vt(read, 0)
    assert "The lease ran out; readable since" in life(operator, ready)


def test_timeline_of_a_dead_letter_begins_in_its_queue(
    operator: Client, orders: BoundQueue
) -> None:
    dead = Message.objects.create_queue("dead")
    Queue.objects.filter(name="orders").update(dead_letter_queue=dead)
    Queue.objects.forget_all()
    pk = orders.send(1)
    [message] = orders.read()
    message.reject("no")

    died = life(operator, pk)
    Message.objects.redrive("dead")

    assert "Sent to orders Failed for good in orders after 1 delivery: a dead letter" in died
    assert "Sent to orders" in life(operator, pk).partition("dead letter")[2]
    source = Queue.objects.get(name="orders").pk
    text = page(operator, "message", "change", pk)
    assert f"/queue/{source}/change/" in text.partition("field-came_from")[2]


def test_message_that_waits_behind_its_group_has_no_moment_yet(
    operator: Client, orders: BoundQueue
) -> None:
    _, second = orders.send_batch([1, 2], group="g")

    [cells] = rows(operator, "message", q=second)

    assert cells[2:5] == ["waiting", "0", "-"]


def test_page_without_a_failure_has_no_word_of_one(operator: Client, orders: BoundQueue) -> None:
    assert "Failure" not in page(operator, "message", "change", orders.send(1))


def test_neighbours_in_the_group_are_linked(operator: Client, orders: BoundQueue) -> None:
    ids = orders.send_batch(list(range(9)), group="g")
    orders.read()

    assert field(operator, ids[2], "around") == (
        f"In its group: before it: {ids[0]} , {ids[1]} ; "
        f"after it: {' , '.join(map(str, ids[3:8]))} , …"
    )
    assert field(operator, ids[0], "around").startswith("In its group: before it: -;")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"password": "x"}, {"password": "•••"}),
        ({"a": [{"API_KEY": {"deep": 1}}]}, {"a": [{"API_KEY": "•••"}]}),
        ({"user_token": None, "n": 1}, {"user_token": "•••", "n": 1}),
        (["password"], ["password"]),
        ("token", "token"),
    ],
)
def test_secrets_are_masked(value: Any, shown: Any) -> None:
    assert mask(value) == shown


@pytest.mark.parametrize(
    "value",
    [
        {"password": "hunter2"},
        {"a": {"secret": ["hunter2", "hunter2"]}, "b": "after"},
        {"token": {"hunter2": {"hunter2": "hunter2"}}},
        {'say "token': "hunter2"},
        {"password": 'with \\" quotes, hunter2'},
        {"secret": 1, "n": {"authorization": "hunter2"}},
    ],
)
def test_secrets_are_masked_in_text_that_was_cut_anywhere(value: Any) -> None:
    text = json.dumps(value)

    for length in range(len(text) + 1):
        assert "hunter" not in mask_text(text[:length])


def test_pages_mask_what_the_setting_names(
    operator: Client, orders: BoundQueue, settings: Any
) -> None:
    settings.PGQUEUE = {"MASKED_KEYS": ["iban"]}
    pk = orders.send({"IBAN": "DE02", "password": "seen"}, headers={"iban": "DE02"})
    orders.archive(pk)

    shown = page(operator, "message", "change", pk) + page(
        operator, "archivedmessage", "change", pk
    )

    assert "DE02" not in shown
    assert "seen" in shown
    assert "DE02" not in rows(operator, "message")[0][-1]


def test_secrets_of_a_large_body_are_masked(operator: Client, orders: BoundQueue) -> None:
    pk = orders.send({"password": "hunter2", "long filler": "x" * 200_000})

    text = page(operator, "message", "change", pk)

    assert "hunter2" not in text
    assert "•••" in text


def test_a_very_deep_body_is_shown(operator: Client, orders: BoundQueue, sql: Any) -> None:
    queue_id = Queue.objects.get().pk
    deep = "[" * 5000 + "]" * 5000
    sql("INSERT INTO pgqueue_message (queue_id, body) VALUES (%s, %s::jsonb)", [queue_id, deep])
    pk = Message.objects.values_list("pk", flat=True).get()

    assert "[[[[[[[[[[" in re.sub(r"\\s", "", page(operator, "message", "change", pk))


def test_odd_headers_of_a_dead_letter_do_no_harm(operator: Client, orders: BoundQueue) -> None:
    for told in (
        {"source": 7, "error": [], "dead_lettered_at": "soon", "enqueued_at": 3},
        {"source": "gone", "dead_lettered_at": "2026-13-45T00:00:00Z"},
        {"dead_lettered_at": "2026-11-22T00:00:00", "count": "many"},
        {"dead_lettered_at": "2026-11-22T00:00:00+00:00", "count": True, "read_ct": {}},
    ):
        pk = queue("orders").send(1, headers={"x-dead-letter": told})
        assert "Sent" in life(operator, pk)
