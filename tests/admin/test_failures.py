"""Failures grouped by error, and actions on a whole group."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_pgqueue import queue
from django_pgqueue.admin import search
from django_pgqueue.admin.failures import WINDOWS, Failures
from django_pgqueue.admin.places import Place
from django_pgqueue.admin.search import Search
from django_pgqueue.models import ArchivedMessage, BoundQueue, BulkAction, Message, Queue
from tests.admin.conftest import MOST, OF_PERMISSIONS, confirm, ids, page, plain, queries, shown

FAILURES = "/admin/django_pgqueue/message/failures/"
TRACE = """{error}

Traceback (most recent call last):
  File "/app/shop/{file}.py", line {line}, in charge
    body["price"]
  File "/env/lib/python3.12/site-packages/lib.py", line 9, in get
{error}"""


def groups(client: Client, **query: Any) -> list[dict[str, str]]:
    """The rows of the page, each with the address of its group."""
    text = client.get(FAILURES, query).content.decode()
    found = []
    for row in re.findall(r"<tr>\n<th.*?</tr>", text, re.DOTALL):
        cells = dict(re.findall(r'data-label="([^"]+)">(.*?)</td>', row, re.DOTALL))
        name = re.search(r'<a href="([^"]+)"><code>(.*?)</code>', row, re.DOTALL)
        assert name is not None
        where = re.search(r'<div class="help">(.*?)</div>', row)
        found.append(
            {
                "error": plain(name[2]),
                "url": html.unescape(name[1]),
                "place": plain(where[1]) if where else "",
                **{label: plain(value) for label, value in cells.items()},
            }
        )
    return found


def counted(client: Client, **query: Any) -> dict[str, str]:
    """The number of messages of each group."""
    return {row["error"]: row["messages"] for row in groups(client, **query)}


def act(client: Client, error: str, action: str) -> tuple[str, str]:
    """Ask for an action on the group whose example has this error."""
    [url] = [row["url"] for row in groups(client) if row["error"] == error]
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


def test_a_button_names_the_error_that_it_retries(operator, failed):
    text = page(operator, "message", "failures")

    assert re.findall(r'aria-label="(Retry: [^"]+|Discard: [^"]+)"', text) == [
        "Retry: card &lt;expired&gt;",
        "Discard: card &lt;expired&gt;",
    ]


def test_a_group_is_an_exception_of_a_frame_with_its_words(operator, orders):
    """tests/engine/test_errors.py has more on what is of one kind."""
    places = [("KeyError: 'price'", "a"), ("KeyError: 'sku'", "a"), ("KeyError: 'price'", "b")]
    fail(
        "orders",
        [TRACE.format(error=error, file=file, line=n) for n in (7, 8) for error, file in places],
    )

    found = groups(operator)

    assert sorted((row["error"], row["place"], row["messages"]) for row in found) == [
        ("KeyError: 'price'", "shop/a.py charge", "2"),
        ("KeyError: 'price'", "shop/b.py charge", "2"),
        ("KeyError: 'sku'", "shop/a.py charge", "2"),
    ]


def test_the_question_names_the_error_and_an_example(operator, orders):
    [pk] = fail("orders", ["no <card> 7"])

    _url, asked = act(operator, "no <card> 7", "discard")

    said = plain(asked)
    assert "Delete 1 message of orders from the archive, with bodies and errors?" in said
    assert f"The error: no <card> 7 , for example in message {pk} ." in said


def test_failed_messages_and_dead_letters_are_grouped(operator, with_dead):
    fail("orders", ["no card 7", "no card 12", "other"])
    [dead] = fail("payments", ["no card 400\n  File x"])

    first, other = groups(operator)

    assert (first["error"], first["messages"], first["dead letters"]) == ("no card 400", "3", "1")
    assert (other["error"], other["messages"], other["dead letters"]) == ("other", "1", "")
    assert first["queues"] == "orders, payments"
    assert f"/message/{dead}/change/" in operator.get(first["url"]).content.decode()
    assert re.fullmatch(r"\d\d:\d\d:\d\d", first["last"])


def test_the_trend_counts_by_spans_of_the_window(operator, orders):
    fail("orders", ["no card 7", "no card 8"])
    failures = Failures([Queue.objects.get().pk], [], WINDOWS["24h"])
    [group] = failures.groups(5)

    trend = failures.trend(group)

    assert (len(trend), sum(trend), sum(trend[-2:])) == (25, 2, 2)


def test_a_window_leaves_out_what_is_older(operator, orders, sql):
    first, _ = fail("orders", ["a", "b"])
    sql("UPDATE pgqueue_archive SET archived_at = now() - interval '2 h' WHERE id = %s", [first])

    assert list(counted(operator, window="1h")) == ["b"]
    assert set(counted(operator, window="24h")) == {"a", "b"}
    assert len(counted(operator, window="nonsense")) == 2


def test_a_group_is_retried_where_each_came_from(operator, with_dead):
    fail("orders", ["no card 7", "other"])
    dead = fail("payments", ["no card 400"])

    url, asked = act(operator, "no card 400", "retry")
    text = confirm(operator, url, asked)

    assert "Send 1 message of dead back to the queues where they failed?" in asked
    assert "Send 1 message of orders again, as new messages?" in asked
    assert "1 message redriven." in text
    assert "1 message sent again." in text
    assert [m.id for m in queue("payments").read()] == dead
    assert [m.body for m in queue("orders").read(qty=5)] == [{"n": 0}]


def test_what_was_sent_again_is_counted_and_not_listed(operator, orders):
    one, *_ = fail("orders", ["no card 7", "no card 8", "other"])
    Message.objects.create_queue("elsewhere")

    orders.replay(ids=[one], to="elsewhere")

    assert counted(operator) == {"no card 8": "1", "other": "1"}
    assert "since they were sent again: 1 message." in operator.get(FAILURES).content.decode()

    confirm(operator, *act(operator, "no card 8", "retry"))

    assert counted(operator) == {"other": "1"}
    assert "since they were sent again: 2 messages." in operator.get(FAILURES).content.decode()


def test_a_group_is_redriven_to_another_queue(operator, with_dead):
    fail("payments", ["no card 400"] * 60)
    Message.objects.create_queue("elsewhere")

    confirm(operator, *act(operator, "no card 400", "retry"), **{"with-to": "elsewhere"})

    bulk_action = BulkAction.objects.get()
    assert bulk_action.filter == {"failure": "no card 400"}
    assert (bulk_action.done, queue("elsewhere").metrics().length) == (60, 60)


def test_a_group_is_discarded(operator, with_dead):
    fail("orders", ["no card 7", "other"])
    fail("payments", ["no card 400"])

    confirm(operator, *act(operator, "no card 400", "discard"))

    assert counted(operator) == {"other": "1"}
    assert Message.objects.count() == ArchivedMessage.objects.count() == 1


def test_what_failed_after_the_question_stays(operator, orders):
    fail("orders", ["no card 7"])
    url, asked = act(operator, "no card 7", "discard")
    later = fail("orders", ["no card 8"])

    confirm(operator, url, asked)

    assert list(ArchivedMessage.objects.values_list("pk", flat=True)) == later


def test_actions_take_their_permissions(staff, with_dead):
    fail("orders", ["no card 7"])
    fail("payments", ["no card 7"])
    client = staff("view_message")
    [row] = groups(client)

    assert "Retry" not in client.get(FAILURES).content.decode()
    for action in ("retry", "discard"):
        assert client.post(row["url"], {"action": action}).status_code == 403
        assert client.post(row["url"], {"action": action, "confirmed": "1"}).status_code == 403
    assert client.post(row["url"], {"action": "drop"}).status_code == 404


def test_only_what_may_be_done_is_done(staff, with_dead):
    fail("orders", ["no card 7"])
    fail("payments", ["no card 8"])
    client = staff("view_message", "redrive_message")

    confirm(client, *act(client, "no card 8", "retry"))

    assert queue("payments").metrics().length == 1
    assert queue("orders").metrics().length == 0


def test_the_page_of_a_group_has_the_newest_error_and_links_its_messages(operator, with_dead):
    sent = fail("orders", ["no card 7\nTraceback <7>", "no card 8\nTraceback <8>"])
    [row] = groups(operator)

    text = operator.get(row["url"]).content.decode()

    for pk in sent:
        assert f"/message/{pk}/change/" in text
    assert "no card 8\nTraceback &lt;8&gt;</pre>" in text
    for gone in ("7", "9" * 30):
        answer = operator.get(f"{FAILURES}{gone}/", follow=True)
        text = html.unescape(answer.content.decode())
        assert answer.status_code == 404 or "This failure is gone" in text


def test_a_message_leads_to_its_group(operator, with_dead):
    [failed] = fail("orders", ["no card 7"])
    [dead] = fail("payments", ["no card 7"])
    [row] = groups(operator, window="7d")

    for pk in (failed, dead):
        assert f'<a href="{row["url"]}">Failures like this' in page(
            operator, "message", "change", pk
        )


def test_the_page_of_a_dead_letter_queue_shows_its_failures(operator, with_dead):
    fail("payments", ["no <card> 7"])

    text = page(operator, "queue", "overview", Queue.objects.get(name="dead").pk)

    assert "<code>no &lt;card&gt; 7</code>" in text
    assert "No message failed." not in text


def test_failures_may_be_those_of_one_queue(operator, with_dead):
    fail("orders", ["other"])
    fail("payments", ["no card 7"])
    pks = dict(Queue.objects.values_list("name", "pk"))

    assert counted(operator, queue=pks["orders"]) == {"other": "1"}
    assert counted(operator, queue=pks["payments"]) == {"no card 7": "1"}
    assert counted(operator, queue=pks["dead"]) == {"no card 7": "1"}
    assert len(counted(operator, queue="x")) == 2


def test_a_page_asks_as_often_for_many_queues(operator, with_dead):
    fail("orders", ["no card 7"])
    operator.get(FAILURES)
    with CaptureQueriesContext(connection) as few:
        operator.get(FAILURES)
    for number in range(30):
        Message.objects.create_queue(f"q{number}")
        fail(f"q{number}", [f"error of {chr(97 + number % 26)}"])

    with CaptureQueriesContext(connection) as many:
        operator.get(FAILURES)

    assert queries(many) == queries(few) <= MOST + OF_PERMISSIONS


# At any size


def test_completions_do_not_hide_what_failed_before_them(operator, orders, monkeypatch):
    monkeypatch.setattr(search, "LOOK", 5)
    sent = fail("orders", [f"no card {number}" for number in range(8)])
    Message.objects.create_queue("mails")
    queue("mails").archive(queue("mails").send_batch(list(range(200))))

    listed = page(operator, "message", state="failed")

    assert counted(operator) == {"no card 7": "8"}
    assert ids(operator, state="failed") == sent[::-1]
    assert "8 messages" in listed
    assert shown(operator, sent[0]).state == "failed"
    _url, asked = act(operator, "no card 7", "retry")
    assert "Send 8 messages of orders again" in asked


@pytest.mark.parametrize("of_one", [False, True])
def test_failed_messages_are_listed_by_their_index(orders, sql, of_one):
    fail("orders", ["no card 7"])
    orders.archive(orders.send_batch(list(range(3000))))
    sql("ANALYZE")
    queues = (Queue.objects.get().pk,) if of_one else None
    statement, params = Search(place=Place["FAILED"], queues=queues)._sql(50, None)

    plan = "\n".join(line for (line,) in sql("EXPLAIN " + statement, params))

    assert re.search(r"Index (Only )?Scan.* using pgqueue_archive_q\d+_archived_at_id", plan), plan


@pytest.mark.parametrize("name", ["groups", "counts", "examples"])
def test_failures_are_grouped_and_counted_by_their_indexes_alone(committed_orders, sql, name):
    """Not by their tracebacks, nor among what completed."""
    dead = Message.objects.create_queue("dead")
    Message.objects.create_queue("payments", dead_letter_queue=dead)
    trace = "\n".join(f"  line {number}" for number in range(200))
    for bound in (committed_orders, queue("payments")):
        bound.send_batch([1] * 4000)
        bound.archive(bound.read(qty=2000))
        failing = bound.read(qty=2000)
        bound.fail({message.receipt: f"no card {trace}" for message in failing})
    sql("VACUUM ANALYZE")
    pks = dict(Queue.objects.values_list("name", "pk"))
    failures = Failures(list(pks.values()), [dead.pk], WINDOWS["7d"])

    with CaptureQueriesContext(connection) as asked:
        if name == "groups":
            assert [group.number for group in failures.groups(5)] == [4000]
        elif name == "examples":
            assert len(failures.examples(5)) == 5
        else:
            assert len(failures.ask("failures/counts")) == 2
    [statement] = [query["sql"] for query in asked]
    lines = sql("EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF) " + statement)
    plan = "\n".join(line for (line,) in lines)

    read = re.findall(r"shared (?:hit|read)=(\d+)", plan.partition("->")[0])
    table = f"pgqueue_archive_q{pks['orders']}"
    [(pages,)] = sql("SELECT pg_relation_size(%s::regclass) / 8192", [table])
    assert f"Seq Scan on {table} " not in plan
    assert f"Seq Scan on pgqueue_message_q{dead.pk} " not in plan
    assert sum(map(int, read)) < 150 < pages, plan
