"""The page of one message: its timeline, its origin, and what it must hide."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from django_pgqueue import queue
from django_pgqueue.acks import Failure, Nack
from django_pgqueue.admin.masking import mask, mask_text, unmasked
from django_pgqueue.models import BoundQueue, Message, Process, Queue
from tests.admin.conftest import (
    act,
    alerts,
    confirm,
    consumer,
    happened,
    ids,
    page,
    rows,
    shown,
)
from tests.leasing import lease


def life(client: Client, pk: int) -> str:
    """The timeline without times."""
    return re.sub(r"(\d{4}-\d\d-\d\d )?\d\d:\d\d(:\d\d)? ?", "", shown(client, pk).life)


def test_timeline_of_a_message_that_was_done(operator, orders, sql):
    pk = orders.send(1)
    orders.archive(orders.read())
    sql(
        "UPDATE pgqueue_archive SET first_read_at = enqueued_at + interval '90 s', "
        "last_read_at = enqueued_at + interval '100 s', read_ct = 2, "
        "archived_at = enqueued_at + interval '100.25 s'"
    )

    assert life(operator, pk) == (
        "Sent First delivery after 1.5 min Delivery 2 Completed after running for 250 ms"
    )


def test_timeline_says_what_comes_next(operator, orders):
    ready = orders.send(1)
    read = orders.read(vt=600)
    delayed = orders.send(2, delay=7200)

    assert "In flight: the lease ends in 9 min" in life(operator, ready)
    assert "Readable in 1 h 59 min" in life(operator, delayed)
    orders.set_vt(read, 0)
    assert "The lease expired: the message has been readable for" in life(operator, ready)


def test_an_expired_message_says_so_in_the_queue_and_in_the_archive(operator, orders):
    pk = orders.send(1, expires=1e-6)

    queued = shown(operator, pk)
    orders.read()
    archived = shown(operator, pk)

    assert queued.why == "Expired: the next read archives it"
    assert "expires" in queued.facts
    assert (archived.state, archived.why) == ("expired", "")
    assert life(operator, pk) == "Sent Expired, not handled in time"
    assert ids(operator, state="expired") == [pk]
    assert ids(operator, state="cancelled") == []


def test_the_page_says_that_no_consumer_lives_or_the_queue_is_paused(operator, orders):
    pk = orders.send(1)

    alone = shown(operator, pk).why
    consumer("orders")
    served = shown(operator, pk).why
    Process.objects.update(quiet=True)
    quiet = shown(operator, pk).why
    Queue.objects.update(paused=True)
    paused = shown(operator, pk).why

    assert alone == quiet == "No consumer of orders is alive"
    assert served == "Readable: the next free consumer takes it"
    assert paused == "orders is paused"


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"group_limit": 2}, "Group a has as many messages in flight as its limit allows"),
        ({"group_rate": "1/h"}, "Over the rate of group a until"),
        ({"limit": 1}, "orders has as many messages in flight as its limit allows"),
        ({"rate": "1/h"}, "Over the rate of orders until"),
    ],
)
def test_the_page_says_which_limit_or_rate_a_message_waits_for(operator, orders, setting, said):
    consumer("orders")
    Queue.objects.update(**setting)
    group = "a" if "group" in next(iter(setting)) else None
    pks = [orders.send(n, group=group) for n in range(4)]
    orders.read(qty=2)

    assert shown(operator, pks[3]).why.startswith(said)


def test_the_page_says_behind_which_message_of_its_group_one_waits(operator, orders):
    process = consumer("orders")
    pks = orders.send_batch(range(12), group="customer 7")
    unread = shown(operator, pks[2]).why
    lease("orders", process_id=process.pk)

    assert unread == "Number 3 in group customer 7, whose first message is ready"
    assert re.fullmatch(
        rf"Number 12 in group customer 7, behind {pks[0]} \(in flight for \d s\)",
        shown(operator, pks[11]).why,
    )
    assert re.fullmatch(
        r"In flight for \d s on web-1:7, delivery 1 of at most 20", shown(operator, pks[0]).why
    )


def test_the_page_says_when_a_message_is_delivered_again_and_after_which_error(operator, orders):
    consumer("orders")
    pk = orders.send(1)
    [message] = orders.read()
    orders.retry({message.receipt: 600}, errors={message.receipt: "the <bank> is down\nat noon"})
    planned = shown(operator, pk).why
    orders.set_vt(pk, 0)

    assert re.fullmatch(
        r"Next delivery at [\d: -]+ \(in 9 min 5\d s\) ?, after the error the <bank> is down",
        planned,
    )
    assert shown(operator, pk).why == "Readable again after the error the <bank> is down"


def test_the_page_says_for_when_a_message_is_scheduled(operator, orders):
    consumer("orders")
    pk = orders.send(1, delay=600)

    assert re.fullmatch(r"Scheduled for [\d: -]+ \(in 9 min 5\d s\)", shown(operator, pk).why)


def test_a_dead_letter_waits_for_no_consumer(operator, letter):
    assert shown(operator, letter).why == (
        "A dead letter: it stays here until it is redriven or deleted"
    )


def test_the_page_of_a_message_that_is_done_has_no_reason(operator, orders):
    pk = orders.send(1)
    orders.archive(pk)

    assert shown(operator, pk).why == ""


@pytest.fixture
def letter(orders: BoundQueue, dead_letters: BoundQueue) -> int:
    """The id of a dead letter."""
    pk = orders.send(1)
    [message] = orders.read()
    message.reject("no")
    return pk


@pytest.mark.parametrize("use_tz", [True, False])
def test_timeline_of_a_dead_letter_begins_in_its_queue(operator, letter, settings, use_tz):
    settings.USE_TZ = use_tz
    died, source = life(operator, letter), Queue.objects.get(name="orders").pk
    text = page(operator, "message", "change", letter)
    queue("dead").redrive()

    assert "Sent to orders Failed for good in orders after 1 delivery: a dead letter" in died
    assert f'<dd><a href="/admin/django_pgqueue/queue/{source}/overview/">orders</a>' in text
    assert "Sent to orders" in life(operator, letter).partition("dead letter")[2]


def test_the_page_of_a_dead_letter_shows_what_happened_before_it_died(operator, orders, sql):
    dead = Message.objects.create_queue("dead")
    Queue.objects.filter(name="orders").update(dead_letter_queue=dead)
    Queue.objects.forget_all()
    pk = orders.send(1)
    sql(f"UPDATE pgqueue_message SET enqueued_at = enqueued_at - interval '90 min' WHERE id = {pk}")
    sql(f"UPDATE pgqueue_ready SET enqueued_at = enqueued_at - interval '90 min' WHERE id = {pk}")
    for _ in range(2):
        [message] = orders.read()
        orders.settle({message.receipt: Nack(0, "no", failure=Failure.of(ValueError("no"), 1))})
    [message] = orders.read()
    message.reject("no")

    letter = shown(operator, pk)
    queue("dead").read()
    held = shown(operator, pk).facts
    queue("dead").set_vt(pk, 0)
    queue("dead").redrive()
    sent_back = shown(operator, pk)

    assert letter.state == "dead letter"
    assert (letter.facts["deliveries"], letter.facts["attempts"]) == ("3", "3")
    assert "(1 h 30 min ago)" in letter.facts["sent"]
    assert re.search(r"\(\d s ago\)", letter.facts["dead letter since"])
    assert held["deliveries"] == "3 before it died, 1 here"
    assert sent_back.state == "ready"
    assert sent_back.facts["deliveries"] == "0 of at most 20"


BARE = 'Traceback (most recent call last):\n  File "x.py", line 7, in f\nKeyError: <price>\n'


def test_a_bare_traceback_is_titled_by_its_error(operator, orders, dead_letters):
    """In the list, on the page, in the reason, and in the alert."""
    consumer("orders", "dead")
    died, waits = orders.send_batch([1, 2])
    dying, waiting = orders.read(qty=2)
    dying.reject(BARE)
    failure = Failure(1, "shop.Odd", BARE, "")
    orders.retry(
        {waiting.receipt: 600}, errors={waiting.receipt: BARE}, failures={waiting.receipt: failure}
    )
    happened(0, completed=1, retried=9)

    listed = {row["id"]: row.get("error") for row in rows(operator, "message")}
    text = page(operator, "message", "change", died)
    reason = shown(operator, waits)

    assert listed[str(died)] == "KeyError: <price>"
    assert "<code>KeyError: &lt;price&gt;</code>" in text
    assert "<code>Traceback" not in text
    assert reason.why.endswith("after the error KeyError: <price>")
    assert "Odd: KeyError: <price>" in reason.life
    assert [each for each in alerts(operator) if each.endswith("Odd: KeyError: <price>")]


def test_message_that_waits_behind_its_group_has_no_moment_yet(operator, orders):
    _, second = orders.send_batch([1, 2], group="g")

    [row] = rows(operator, "message", q=second)

    assert (row["state"], row["deliveries"], row["turn"]) == ("waiting", "0", "")


def test_neighbours_in_the_group_are_linked(operator, orders):
    ids = orders.send_batch(list(range(9)), group="g")
    orders.read()

    third, first = shown(operator, ids[2]).facts, shown(operator, ids[0]).facts
    assert third["before"] == f"{ids[0]} , {ids[1]}"
    assert third["behind"] == f"{' , '.join(map(str, ids[3:8]))} , …"
    assert first["before"] == "none"


@pytest.mark.parametrize(
    ("value", "masked"),
    [
        ({"password": "x"}, {"password": "•••"}),
        ({"a": [{"API_KEY": {"deep": 1}}]}, {"a": [{"API_KEY": "•••"}]}),
        ({"user_token": None, "n": 1}, {"user_token": "•••", "n": 1}),
        (["password"], ["password"]),
        ("token", "token"),
    ],
)
def test_secrets_are_masked(value, masked):
    assert mask(value) == masked


@pytest.mark.parametrize(
    "value",
    [
        {"password": "hunter2"},
        {"a": {"secret": ["hunter2", "hunter2"]}, "b": "after"},
        {"token": {"hunter2": {"hunter2": "hunter2"}}},
        {'say "token': "hunter2"},
        {"password": 'with \\" quotes, hunter2'},
        {"password": 'hunter2" with a quote'},
        {"secret": 1, "n": {"authorization": "hunter2"}},
    ],
)
def test_secrets_are_masked_in_text_that_was_cut_anywhere(value):
    text = json.dumps(value)

    for length in range(len(text) + 1):
        assert "hunter" not in mask_text(text[:length])


def test_pages_mask_what_the_setting_names(operator, orders, settings):
    settings.PGQUEUE = {"MASKED_KEYS": ["iban"]}
    pk = orders.send({"IBAN": "DE02", "password": "seen"}, headers={"iban": "DE02"})
    orders.archive(pk)

    text = page(operator, "message", "change", pk)

    assert "DE02" not in text
    assert "seen" in text
    assert "DE02" not in rows(operator, "message")[0]["body"]


def test_secrets_of_a_large_body_are_masked(operator, orders):
    pk = orders.send({"password": "hunter2", "long filler": "x" * 200_000})

    text = page(operator, "message", "change", pk)

    assert "hunter2" not in text
    assert "•••" in text


@pytest.mark.parametrize("odd", ["[" * 5000 + "]" * 5000, "9" * 5000], ids=["deep", "digits"])
def test_what_python_cannot_read_is_shown_and_exported(operator, orders, sql, odd):
    queue_id = Queue.objects.get().pk
    sql(
        "INSERT INTO pgqueue_message (queue_id, body, headers) VALUES (%s, %s::jsonb, %s::jsonb)",
        [queue_id, odd, f'{{"a": {odd}}}'],
    )
    pk = Message.objects.values_list("pk", flat=True).get()

    listed = rows(operator, "message")
    exported = operator.get(reverse("admin:django_pgqueue_message_changelist"), {"export": "jsonl"})

    assert odd[:10] in page(operator, "message", "change", pk)
    assert odd[:10] in listed[0]["body"] or "in the database" in listed[0]["body"]
    assert odd[:10] in b"".join(exported.streaming_content).decode()
    assert "too large to edit" in send(operator, pk, body="1")


def test_odd_headers_of_a_dead_letter_do_no_harm(operator, orders):
    for told in (
        {"source": 7, "error": [], "dead_lettered_at": "soon", "enqueued_at": 3},
        {"source": "gone", "dead_lettered_at": "2026-13-45T00:00:00Z"},
        {"dead_lettered_at": "2026-11-22T00:00:00", "count": "many"},
        {"dead_lettered_at": "2026-11-22T00:00:00+00:00", "count": True, "read_ct": {}},
    ):
        pk = queue("orders").send(1, headers={"x-dead-letter": told})
        assert "Sent" in life(operator, pk)


def test_each_failed_attempt_has_its_worker_error_and_traceback(operator, orders):
    """Shown while the message waits for a retry, too."""
    process = consumer("orders")
    pk = orders.send(1)
    for number in (1, 2):
        [message] = orders.read()
        error = ValueError(f"<b>card {number}</b>")
        failure = Failure.of(error, number)
        orders.settle({message.receipt: Nack(0, "no", failure=failure)}, process_id=process.pk)

    text = page(operator, "message", "change", pk)

    assert re.search(r"Attempt 1 .*web-1:7.*Attempt 2 .*ValueError", text, re.DOTALL)
    assert "&lt;b&gt;card 2&lt;/b&gt;" in text
    assert text.count("<details open>") == 1
    assert "<b>card" not in text


def test_actions_on_a_message_are_on_its_page(operator, orders):
    pk = orders.send({"n": 1}, delay=60)
    text = page(operator, "message", "change", pk)

    done = act(operator, "message", "readable", pk)
    cancelled = act(operator, "message", "cancel", pk)

    assert ">Deliver now</button>" in text
    assert 'value="replay"' not in text
    assert "1 message made readable." in done
    assert "1 message cancelled." in cancelled
    after = page(operator, "message", "change", pk)
    assert "cancelled by ann" in after
    assert "ann: Cancel (messages: " in after
    assert 'value="readable"' not in after
    assert 'value="replay"' in after


def test_archived_messages_are_sent_again_and_the_copies_linked(operator, failed):
    url = reverse("admin:django_pgqueue_message_changelist")
    asked = act(operator, "message", "replay", failed)

    text = confirm(operator, url, asked)

    assert "Send 1 message of orders again, as new messages?" in asked
    assert "1 message sent again." in text
    [message] = queue("orders").read()
    assert message.body == {"total": "<b>7</b>"}
    copy = f'/message/{message.id}/change/?queue={message.queue_id}">{message.id}</a>'
    assert f'Copies: <a href="/admin/django_pgqueue{copy}' in text
    assert f"a copy of message {failed}" in shown(operator, message.id).life


def copy_of(pk: int) -> str:
    """The address of the form that sends a copy of a message."""
    queue_id = Message.objects.values_list("queue_id", flat=True).get(pk=pk)
    return reverse("admin:django_pgqueue_queue_send", args=[queue_id], query={"copy": pk})


def send(client: Client, pk: int, **values: Any) -> str:
    given = {"queue": Queue.objects.get(name="orders").pk, "priority": "0", **values}
    return client.post(copy_of(pk), given, follow=True).content.decode()


def test_a_message_is_edited_and_sent_as_new(operator, orders):
    pk = orders.send(
        {"total": 7, "password": "hunter2"},
        headers={"trace": "abc", "x-dead-letter": {"source": "x"}},
        group="g",
        priority=5,
    )
    orders.archive(pk)
    form = operator.get(copy_of(pk)).content.decode()

    edited = {"total": 8, "password": "•••"}
    text = send(
        operator, pk, body=json.dumps(edited), headers='{"trace": "b"}', group="g", priority="5"
    )

    assert copy_of(pk) in page(operator, "message", "change", pk)
    assert "hunter2" not in form
    assert "x-dead-letter" not in form
    [message] = orders.read()
    assert message.body == {"total": 8, "password": "hunter2"}
    assert (message.headers["trace"], message.group_key, message.priority) == ("b", "g", 5)
    assert f">{message.id}</a> to orders." in text
    assert f">{message.id}</a>, copy of: <a" in page(operator, "message", "change", pk)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"body": "{"}, "Correct the JSON"),
        ({"body": "1", "headers": "[1]"}, "Enter a JSON object, such as"),
        ({"body": "1", "headers": "7"}, "Enter a JSON object, such as"),
        ({"body": "[" * 3000 + "]" * 3000}, "nested more than 200 levels deep"),
        ({"body": '{"a":' * 201 + "1" + "}" * 201}, "nested more than 200 levels deep"),
        ({"body": '"\\u0000"'}, "errorlist"),
        ({"body": "1", "priority": "101"}, "errorlist"),
        ({"body": "1", "queue": "999999"}, "errorlist"),
    ],
)
def test_what_cannot_be_sent_is_said(operator, orders, values, said):
    pk = orders.send(1)

    assert said in html.unescape(send(operator, pk, **values))
    assert Message.objects.count() == 1


def test_a_body_that_is_too_deep_is_not_edited_and_one_of_the_deepest_is(operator, orders):
    deepest, deeper = ("[" * depth + "]" * depth for depth in (200, 201))
    pk, other = orders.send(json.loads(deepest)), orders.send(json.loads(deeper))

    assert "too large to edit" in send(operator, other, body="1")
    assert "Sent message" in send(operator, pk, body=deepest)
    assert Message.objects.count() == 3


def test_a_body_that_is_too_large_is_not_edited(operator, orders):
    pk = orders.send("x" * 300_000)

    assert "too large to edit" in send(operator, pk, body="1")
    assert Message.objects.count() == 1


@pytest.mark.parametrize("permissions", [["view_message"], ["view_queue", "send_message"]])
def test_sending_a_copy_takes_the_permissions_to_see_and_to_send(staff, orders, permissions):
    pk = orders.send(1)
    client = staff(*permissions)

    assert client.get(copy_of(pk)).status_code in (403, 404)
    assert client.post(copy_of(pk), {"body": "1", "priority": "0"}).status_code in (403, 404)
    assert Message.objects.count() == 1


@pytest.mark.parametrize(
    ("edited", "original", "sent"),
    [
        ([{"token": "•••"}], [{"token": 1}], [{"token": 1}]),
        ({"token": "•••"}, None, {"token": "•••"}),
        ("•••", "x", "•••"),
    ],
)
def test_masked_values_go_along_as_they_were(edited, original, sent):
    assert unmasked(edited, original) == sent
