"""Failures grouped by error, and actions on a whole group."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_pgqueue import queue
from django_pgqueue.admin import failures, search
from django_pgqueue.admin.failures import fingerprint, normal
from django_pgqueue.admin.places import Place
from django_pgqueue.admin.search import Search
from django_pgqueue.models import ArchivedMessage, BoundQueue, BulkAction, Message
from tests.admin.conftest import _plain, confirm, page


def groups(client: Client, **query: str) -> list[dict[str, str]]:
    """The rows of the page."""
    text = client.get(reverse("admin:django_pgqueue_message_failures"), query).content.decode()
    body = text.partition("<tbody>")[2].partition("</tbody>")[0]
    found = []
    for row in re.findall(r"<tr.*?</tr>", body, re.DOTALL):
        cells = dict(re.findall(r'data-label="([^"]+)">(.*?)</td>', row, re.DOTALL))
        name = re.search(r'<th scope="row">(.*?)</th>', row, re.DOTALL)
        assert name is not None
        found.append({"error": _plain(name[1]), **{k: _plain(v) for k, v in cells.items()}})
    return found


def act(client: Client, error: str, action: str) -> tuple[str, str]:
    url = reverse("admin:django_pgqueue_message_failure", args=[fingerprint(error)])
    return url, client.post(url, {"action": action}).content.decode()


def fail(name: str, errors: list[str]) -> list[int]:
    bound = queue(name)
    bound.send_batch([{"n": number} for number in range(len(errors))])
    messages = bound.read(qty=len(errors))
    for message, error in zip(messages, errors, strict=True):
        message.reject(error)
    return [message.id for message in messages]


@pytest.fixture
def with_dead(orders: BoundQueue) -> BoundQueue:
    dead = Message.objects.create_queue("dead")
    Message.objects.create_queue("payments", dead_letter_queue=dead)
    return queue("dead")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("no order 7", "no order 1234"),
        ("KeyError: 'ann 1'", "KeyError: 'robert 2'"),
        ('no "a b"', 'no "c d"'),
        ("id 3f2a77b1-0c4d-4e1a-9b2c-7d8e9f000001", "id 00000000-0c4d-4e1a-9b2c-7d8e9f0000aa"),
        ("after 0.25 s at 12:30:01", "after 17.5 s at 23:59:59"),
        ("card <4242> of 7\nTraceback 1", "card <1> of 12\nTraceback 2"),
    ],
)
def test_errors_that_differ_in_numbers_and_ids_are_one(one: str, other: str) -> None:
    assert fingerprint(one) == fingerprint(other)
    assert fingerprint(one) != fingerprint("something else")
    assert fingerprint(one.translate(str.maketrans("123456789", "000000000"))) == fingerprint(one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("TimeoutError: the bank did not answer", "TimeoutError: no connection"),
        ("KeyError: 'price'", "KeyError: 'sku'"),
        ('violates unique constraint "order_pkey"', 'violates unique constraint "order_ref"'),
        (
            "Traceback (most recent call last):\n  a\nA: no",
            "Traceback (most recent call last):\nB: no",
        ),
    ],
)
def test_errors_with_other_words_or_names_are_two_groups(
    operator: Client, orders: BoundQueue, one: str, other: str
) -> None:
    fail("orders", [one, other])

    found = groups(operator)

    assert [row["messages"] for row in found] == ["1", "1"]
    assert {row["error"] for row in found} == {normal(one), normal(other)}


def test_tracebacks_of_one_error_are_one_group(operator: Client, with_dead: BoundQueue) -> None:
    trace = 'Traceback (most recent call last):\n  File "a.py", line 7\n' + "x" * 300
    fail("orders", [f"{trace}\nTimeoutError: {number} s\n" for number in (3, 17)])
    fail("payments", [f"{trace}\nTimeoutError: 4 s"])

    assert [(row["error"], row["messages"]) for row in groups(operator)] == [
        ("TimeoutError: # s", "3")
    ]


def test_the_question_names_the_error_and_an_example(operator: Client, orders: BoundQueue) -> None:
    [pk] = fail("orders", ["no <card> 7"])

    _url, asked = act(operator, "no <card> 7", "discard")

    assert f"no … #: for example message {pk}." in _plain(asked)


def test_failed_messages_and_dead_letters_are_grouped(
    operator: Client, with_dead: BoundQueue
) -> None:
    failed = fail("orders", ["no card 7", "no card 12", "other"])
    dead = fail("payments", ["no card 400\n  File x"])

    found = groups(operator)

    assert [(row["error"], row["messages"], row["dead letters"]) for row in found] == [
        ("no card #", "3", "1"),
        ("other", "1", "0"),
    ]
    assert found[0]["queues"] == "dead, orders"
    assert found[0]["example"] in (str(failed[1]), str(dead[0]))
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", found[0]["first"])


def test_a_window_leaves_out_what_is_older(
    operator: Client, orders: BoundQueue, sql: Callable[..., Any]
) -> None:
    first, _ = fail("orders", ["a", "b"])
    sql("UPDATE pgqueue_archive SET archived_at = now() - interval '2 h' WHERE id = %s", [first])

    assert [row["error"] for row in groups(operator, window="1h")] == ["b"]
    assert {row["error"] for row in groups(operator, window="24h")} == {"a", "b"}
    assert len(groups(operator, window="nonsense")) == 2


def test_a_group_is_retried_where_each_came_from(operator: Client, with_dead: BoundQueue) -> None:
    fail("orders", ["no card 7", "other"])
    dead = fail("payments", ["no card 400"])

    url, asked = act(operator, "no card 1", "retry")
    text = confirm(operator, url, asked)

    assert "orders: 1 message" in asked
    assert "dead: 1 message" in asked
    assert "1 message redriven." in text
    assert "1 message sent again." in text
    assert [m.id for m in queue("payments").read()] == dead
    assert [m.body for m in queue("orders").read(qty=5)] == [{"n": 0}]


def test_what_was_sent_again_is_counted_and_not_listed(
    operator: Client, orders: BoundQueue
) -> None:
    one, *_ = fail("orders", ["no card 7", "no card 8", "other"])
    Message.objects.create_queue("elsewhere")
    orders.send(1, headers={"x-replay-of": "1e400"})
    url = reverse("admin:django_pgqueue_message_failures")

    orders.replay(ids=[one], to="elsewhere")

    assert [(row["error"], row["messages"]) for row in groups(operator)] == [
        ("no card #", "1"),
        ("other", "1"),
    ]
    assert "left out of this list: 1 message." in operator.get(url).content.decode()

    address, asked = act(operator, "no card 1", "retry")
    assert "orders: 1 message" in asked
    confirm(operator, address, asked)

    assert [row["error"] for row in groups(operator)] == ["other"]
    assert "left out of this list: 2 messages." in operator.get(url).content.decode()


def test_a_group_is_redriven_to_another_queue(operator: Client, with_dead: BoundQueue) -> None:
    fail("payments", ["no card 400"] * 60)
    Message.objects.create_queue("elsewhere")

    url, asked = act(operator, "no card 1", "redrive")
    confirm(operator, url, asked, **{"with-to": "elsewhere"})

    bulk_action = BulkAction.objects.get()
    assert bulk_action.filter == {"failure": "no card #"}
    assert (bulk_action.done, queue("elsewhere").metrics().length) == (60, 60)


def test_a_group_is_discarded(operator: Client, with_dead: BoundQueue) -> None:
    fail("orders", ["no card 7", "other"])
    fail("payments", ["no card 400"])

    confirm(operator, *act(operator, "no card 1", "discard"))

    assert [row["error"] for row in groups(operator)] == ["other"]
    assert Message.objects.count() == ArchivedMessage.objects.count() == 1


def test_what_failed_after_the_question_stays(operator: Client, orders: BoundQueue) -> None:
    fail("orders", ["no card 7"])
    url, asked = act(operator, "no card 1", "discard")
    later = fail("orders", ["no card 8"])

    confirm(operator, url, asked)

    assert list(ArchivedMessage.objects.values_list("pk", flat=True)) == later


def test_actions_take_their_permissions(
    staff: Callable[..., Client], with_dead: BoundQueue
) -> None:
    fail("orders", ["no card 7"])
    fail("payments", ["no card 7"])
    client = staff("view_message")

    text = client.get(reverse("admin:django_pgqueue_message_failures")).content.decode()

    assert "Retry" not in text
    for action in ("retry", "redrive", "discard"):
        url = reverse("admin:django_pgqueue_message_failure", args=[fingerprint("no card 7")])
        assert client.post(url, {"action": action}).status_code == 403
        assert client.post(url, {"action": action, "confirmed": "1"}).status_code == 403
    assert client.post(url, {"action": "drop"}).status_code == 404


def test_only_what_may_be_done_is_done(staff: Callable[..., Client], with_dead: BoundQueue) -> None:
    fail("orders", ["no card 7"])
    fail("payments", ["no card 7"])
    client = staff("view_message", "redrive_message")

    confirm(client, *act(client, "no card 1", "retry"))

    assert queue("payments").metrics().length == 1
    assert queue("orders").metrics().length == 0


def test_the_page_is_closed_to_who_may_not_view(staff: Callable[..., Client]) -> None:
    client = staff("view_queue")

    assert client.get(reverse("admin:django_pgqueue_message_failures")).status_code == 403
    url = reverse("admin:django_pgqueue_message_failure", args=["x"])
    assert client.get(url).status_code == 403


def test_the_page_of_a_group_links_its_newest_messages(
    operator: Client, with_dead: BoundQueue
) -> None:
    ids = fail("orders", ["no card 7", "no card 8"])
    url = reverse("admin:django_pgqueue_message_failure", args=[fingerprint("no card 1")])

    text = operator.get(url).content.decode()

    for pk in ids:
        assert f"/message/{pk}/change/" in text
    gone = reverse("admin:django_pgqueue_message_failure", args=["f" * 16])
    followed = operator.get(gone, follow=True).content.decode()
    assert "no such failure any more" in html.unescape(followed)


def test_a_page_asks_as_often_for_many_queues(operator: Client, with_dead: BoundQueue) -> None:
    url = reverse("admin:django_pgqueue_message_failures")
    fail("orders", ["no card 7"])
    operator.get(url)
    with CaptureQueriesContext(connection) as few:
        operator.get(url)
    for number in range(30):
        Message.objects.create_queue(f"q{number}")
        fail(f"q{number}", [f"error of {chr(97 + number % 26)}"])

    with CaptureQueriesContext(connection) as many:
        operator.get(url)

    assert len(many) == len(few)
    assert len([q for q in many if "SAVEPOINT" not in q["sql"]]) <= 15


def test_the_search_reads_the_newest_only_by_their_index(
    operator: Client, with_dead: BoundQueue, sql: Callable[..., Any]
) -> None:
    fail("payments", ["no card 7"])
    done = queue("dead").send_batch(list(range(3000)))
    queue("dead").archive(done[:2500])
    sql("ANALYZE")
    with CaptureQueriesContext(connection) as asked:
        groups(operator)
    [looked] = [q["sql"] for q in asked if "translate" in q["sql"]]

    plan = "\n".join(line for (line,) in sql("EXPLAIN " + looked))

    assert "Hash Anti Join" not in plan
    assert "SubPlan" in plan


def test_completions_do_not_hide_what_failed_before_them(
    operator: Client, orders: BoundQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "LOOK", 5)
    monkeypatch.setattr(search, "LOOK", 5)
    [first, second] = fail("orders", ["no card 7", "no card 8"])
    Message.objects.create_queue("mails")
    queue("mails").archive(queue("mails").send_batch(list(range(20))))
    listed = page(operator, "message", state="failed", newer="1h")

    assert [(row["error"], row["messages"]) for row in groups(operator)] == [("no card #", "2")]
    assert "2 messages" in listed
    assert f"/message/{first}/change/" in listed
    _url, asked = act(operator, "no card 1", "retry")
    assert f"2 in all, up to id {second}" in asked


def test_failed_messages_are_found_by_their_index(
    orders: BoundQueue, sql: Callable[..., Any]
) -> None:
    fail("orders", ["no card 7"])
    orders.archive(orders.send_batch(list(range(3000))))
    sql("ANALYZE")
    statement, params = Search(place=Place.FAILED)._sql(50, None)

    plan = "\n".join(line for (line,) in sql("EXPLAIN " + statement, params))

    assert re.search(r"Index (Only )?Scan.* using pgqueue_archive_q\d+_id_idx", plan), plan
