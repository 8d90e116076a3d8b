"""The messages' page: what each one is, where it stands, and settling it by hand."""

from __future__ import annotations

import html
import os
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_pgqueue import queue
from django_pgqueue.admin import pages
from django_pgqueue.models import ArchivedMessage, BoundQueue, Message, Queue
from tests.admin.conftest import act, confirm, overview, page, rows

LIST = "/admin/django_pgqueue/message/"


@pytest.fixture
def one_in_each_state(orders: BoundQueue) -> dict[str, int]:
    """Ids by the place in which they stand."""
    ids = {
        state: orders.send({"will be": state})
        for state in ("completed", "failed", "delayed", "in flight", "due")
    }
    completed, failed, retryable, _, due = orders.read(qty=5)
    orders.set_vt(due, 0)
    orders.archive(completed)
    failed.reject("no")
    retryable.nack(60)
    ids["ready"] = orders.send({"will be": "ready"})
    orders.send_batch([{"in": "a group"}] * 2, group="g")
    ids["waiting"] = max(Message.objects.values_list("pk", flat=True))
    return ids


def test_list_shows_where_each_message_stands(
    operator: Client, one_in_each_state: dict[str, int]
) -> None:
    listed = {int(cells[0]): cells for cells in rows(operator, "message")}

    for place, pk in one_in_each_state.items():
        assert listed[pk][2] == place
    assert listed[one_in_each_state["in flight"]][1:4] == ["orders", "in flight", "1"]
    assert listed[one_in_each_state["ready"]][6] == '{"will be": "ready"}'


def test_list_is_newest_first(operator: Client, orders: BoundQueue) -> None:
    ids = orders.send_batch([1, 2, 3])

    assert [int(cells[0]) for cells in rows(operator, "message")] == ids[::-1]


@pytest.mark.parametrize("place", ["due", "waiting", "in_flight", "delayed", "completed", "failed"])
def test_state_filter_finds_the_messages_in_it(
    operator: Client, one_in_each_state: dict[str, int], place: str
) -> None:
    queue("mails").create()
    queue("mails").send(1)
    orders = Queue.objects.get(name="orders").pk

    of_all = [cells[0] for cells in rows(operator, "message", state=place)]
    of_orders = [cells[0] for cells in rows(operator, "message", state=place, queue=orders)]

    assert of_orders == of_all == [str(one_in_each_state[place.replace("_", " ")])]


@pytest.mark.parametrize("given", ["nowhere", "-1", "9" * 30, "٣"])
def test_a_queue_that_cannot_be_has_no_messages(
    operator: Client, one_in_each_state: dict[str, int], given: str
) -> None:
    assert rows(operator, "message", queue=given) == []
    assert rows(operator, "message", queue=given, state="ready") == []


def test_state_filter_knows_unlogged_queues(operator: Client, orders: BoundQueue) -> None:
    queue("fast").create(unlogged=True)
    fresh, delayed = queue("fast").send(1), queue("fast").send(2, delay=60)

    assert [cells[0] for cells in rows(operator, "message", state="ready")] == [str(fresh)]
    assert [cells[0] for cells in rows(operator, "message", state="delayed")] == [str(delayed)]


def test_ready_messages_are_listed_in_the_order_in_which_they_are_read(
    operator: Client, orders: BoundQueue
) -> None:
    ids = orders.send_batch(list(range(60)))
    urgent = orders.send("now", priority=5)
    chosen = {"state": "ready", "queue": Queue.objects.get().pk}

    first = [int(cells[0]) for cells in rows(operator, "message", **chosen)]
    second = [int(cells[0]) for cells in rows(operator, "message", p=2, **chosen)]

    assert first + second == [urgent, *ids]


def test_ready_messages_are_found_by_their_index(
    operator: Client, orders: BoundQueue, sql: Callable[..., Any]
) -> None:
    orders.send_batch(list(range(5000)))
    queue("mails").create()
    sql("ANALYZE pgqueue_ready")
    with CaptureQueriesContext(connection) as asked:
        rows(operator, "message", state="ready", queue=Queue.objects.get(name="orders").pk)
    [looked] = [q["sql"] for q in asked if "FROM pgqueue_ready WHERE" in q["sql"]]

    plan = "\n".join(line for (line,) in sql("EXPLAIN " + looked))

    assert "pgqueue_ready_key" in plan
    assert "Seq Scan on pgqueue_ready" not in plan


def test_search_within_a_state_finds_only_what_is_asked_for(
    operator: Client, orders: BoundQueue
) -> None:
    first, _ = orders.send_batch([1, 2])

    assert [cells[0] for cells in rows(operator, "message", state="ready", q=first)] == [str(first)]


def test_a_number_of_messages_equals_the_list_behind_its_link(
    operator: Client, orders: BoundQueue
) -> None:
    """Also of groups without a head, and of leases that ran out."""
    orders.send_batch([1] * 50)
    for message in orders.read(qty=50):
        orders.set_vt(message, 0)
    orders.send_batch([2] * 7)
    orders.read(qty=3, vt=60)
    orders.send_batch([3] * 40, group="g")
    orders.send_batch([3] * 5, group="h", delay=60)
    orders.send_batch([4] * 6, delay=60)

    cells = overview(operator)["orders"]
    links = re.findall(
        r'data-label="([^"]+)"><a href="([^"]+)">([\d,]+)</a>', page(operator, "queue")
    )

    listed = {}
    for name, link, number in links:
        response = operator.get(html.unescape(link))
        listed[name] = response.context["cl"].result_count
        assert listed[name] == int(number), name
    assert listed.pop("failed in 1 h") == 0
    assert sum(listed.values()) == orders.metrics().length == int(cells["all"])
    assert set(listed) == {"ready", "due", "waiting", "in flight", "delayed"}
    assert all(listed.values())


def test_search_finds_ids(operator: Client, orders: BoundQueue) -> None:
    first, second, _ = orders.send_batch([1, 2, 3])

    assert [cells[0] for cells in rows(operator, "message", q=str(first))] == [str(first)]
    assert len(rows(operator, "message", q=f"{first}, {second}")) == 2


@pytest.mark.parametrize("words", ["seven", "-1", "9" * 30, "٣", "1.5"])
def test_search_for_what_is_no_id_finds_nothing(
    operator: Client, orders: BoundQueue, words: str
) -> None:
    orders.send(1)

    assert rows(operator, "message", q=words) == []


def test_a_page_costs_the_same_for_one_message_and_for_fifty(
    operator: Client, orders: BoundQueue
) -> None:
    orders.send(1)
    with CaptureQueriesContext(connection) as one:
        page(operator, "message")
    orders.send_batch(list(range(60)))

    with CaptureQueriesContext(connection) as fifty:
        assert len(rows(operator, "message")) == 50

    assert len(fifty) == len(one)


def test_nothing_counts_or_sorts_without_an_end(operator: Client, orders: BoundQueue) -> None:
    orders.send_batch([1, 2, 3])

    with CaptureQueriesContext(connection) as asked:
        page(operator, "message", o="5")  # an order by enqueued_at, if it were allowed

    of_messages = [q["sql"] for q in asked if 'FROM "pgqueue_message"' in q["sql"]]
    assert of_messages
    for sql in of_messages:
        assert (
            f"LIMIT {pages.CAP}" in sql
            or 'ORDER BY "pgqueue_message"."id" DESC' in sql
            or ('"pgqueue_message"."id" IN' in sql)
        ), sql


def test_list_counts_no_further_than_its_cap(
    operator: Client, orders: BoundQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.send_batch(list(range(120)))
    monkeypatch.setattr(pages, "CAP", 70)

    text = page(operator, "message")

    assert "70 messages" in text
    assert len(rows(operator, "message", p=2)) == 20


def test_message_is_shown_with_its_body_escaped(operator: Client, failed: int) -> None:
    text = page(operator, "message", "change", failed)

    assert "&quot;total&quot;: &quot;&lt;b&gt;7&lt;/b&gt;&quot;" in text
    assert "&quot;trace&quot;: &quot;abc&quot;" in text
    assert "card &lt;expired&gt;" in text
    assert "<b>7</b>" not in text
    assert f"/archivedmessage/{failed}/change/" in text


def test_preview_is_escaped_and_cut(operator: Client, orders: BoundQueue) -> None:
    orders.send("<script>" + "x" * 200)

    text = page(operator, "message")

    assert "<script>x" not in text
    assert rows(operator, "message")[0][6] == '"<script>' + "x" * 71 + "…"


def test_message_cannot_be_added_changed_or_deleted(operator: Client, orders: BoundQueue) -> None:
    message_id = orders.send(1)
    change = reverse("admin:django_pgqueue_message_change", args=[message_id])

    assert operator.get(reverse("admin:django_pgqueue_message_add")).status_code == 403
    assert operator.post(change, {"priority": 5}).status_code == 403
    assert operator.post(change.replace("change", "delete")).status_code == 403
    assert Message.objects.get().priority == 0


def test_unknown_message_leads_back_to_the_index(operator: Client, orders: BoundQueue) -> None:
    for unknown in ("12345", "abc", "9" * 30):
        url = reverse("admin:django_pgqueue_message_change", args=[unknown])
        assert operator.get(url).status_code == 302


def test_selected_messages_are_archived_in_their_queues(
    operator: Client, orders: BoundQueue
) -> None:
    queue("mails").create()
    ids = [orders.send(1), orders.send(2), queue("mails").send(3), orders.send(4)]

    text = act(operator, "message", "archive_selected", *ids[:3])

    assert "3 messages archived." in text
    assert set(ArchivedMessage.objects.values_list("pk", flat=True)) == set(ids[:3])
    assert {entry.object_repr for entry in LogEntry.objects.all()} == {"orders", "mails"}


def test_messages_in_flight_and_delayed_are_made_readable(
    operator: Client, orders: BoundQueue
) -> None:
    in_flight = orders.send(1)
    orders.read()
    delayed = orders.send(2, delay=60)

    text = act(operator, "message", "make_readable", in_flight, delayed)

    assert "2 messages made readable." in text
    assert {message.id for message in orders.read(qty=5)} == {in_flight, delayed}


def test_what_has_left_the_queue_is_left_alone(operator: Client, failed: int) -> None:
    text = act(operator, "message", "archive_selected", failed)

    assert "1 message left alone" in text
    assert ArchivedMessage.objects.get().state == "FAILED"


def test_deleting_asks_first(operator: Client, orders: BoundQueue) -> None:
    first, second = orders.send_batch([1, 2])

    asked = act(operator, "message", "delete_for_good", first)
    assert Message.objects.count() == 2
    done = confirm(operator, LIST, asked)

    assert "orders: 1 message" in asked
    assert "1 message deleted." in done
    assert Message.objects.get().pk == second


def test_selecting_all_pages_acts_on_what_the_filters_leave_and_the_list_counts(
    operator: Client, orders: BoundQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = orders.send_batch(list(range(60)))
    queue("mails").create()
    queue("mails").send("stays")
    monkeypatch.setattr(pages, "CAP", 55)
    url = reverse("admin:django_pgqueue_message_changelist")

    response = operator.post(
        f"{url}?queue={Queue.objects.get(name='orders').pk}",
        {"action": "archive_selected", "_selected_action": [ids[0]], "select_across": "1"},
    )
    assert not ArchivedMessage.objects.exists()
    confirm(operator, LIST, response.content.decode())

    assert set(ArchivedMessage.objects.values_list("pk", flat=True)) == set(ids[5:])
    assert queue("mails").metrics().length == 1


@pytest.mark.parametrize("filters", [{}, {"state": "ready"}])
def test_what_came_after_the_question_is_left_alone(
    operator: Client, orders: BoundQueue, filters: dict[str, str]
) -> None:
    there = orders.send_batch(list(range(60)))
    url = reverse("admin:django_pgqueue_message_changelist", query=filters)
    asked = operator.post(
        url,
        {"action": "delete_for_good", "_selected_action": [there[0]], "select_across": "1"},
    ).content.decode()
    later = orders.send_batch(list(range(100)))

    done = confirm(operator, LIST, asked)

    assert f"60 in all, up to id {there[-1]}" in asked
    assert "60 messages deleted." in done
    assert set(Message.objects.values_list("pk", flat=True)) == set(later)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"1": "x"}', '{"x": [1]}', f'{{"1": [{10**30}]}}']
)
def test_a_selection_that_was_not_asked_about_is_refused(
    operator: Client, orders: BoundQueue, text: str
) -> None:
    orders.send(1)

    response = operator.post(
        reverse("admin:django_pgqueue_message_changelist"),
        {
            "action": "delete_for_good",
            "_selected_action": "0",
            "select_across": "1",
            "confirmed": "yes",
            "selection": text,
        },
    )

    assert response.status_code == 400
    assert Message.objects.count() == 1


@pytest.mark.parametrize(
    "lookup",
    [{"body__icontains": "x"}, {"headers__x": "1"}, {"group_key": "g"}, {"queue__name": "orders"}],
)
def test_look_ups_that_no_filter_offers_are_refused(
    operator: Client, orders: BoundQueue, lookup: dict[str, str]
) -> None:
    for model in ("message", "archivedmessage"):
        url = reverse(f"admin:django_pgqueue_{model}_changelist")
        assert operator.get(url, lookup).status_code == 400


def test_lists_offer_no_counts_beside_their_filters(operator: Client, orders: BoundQueue) -> None:
    orders.send(1)

    with CaptureQueriesContext(connection) as asked:
        text = page(operator, "message", _facets="")

    assert "Show counts" not in text
    assert not [q for q in asked if "COUNT(CASE" in q["sql"].upper()]


def test_large_bodies_are_not_read_for_a_list(operator: Client, orders: BoundQueue) -> None:
    orders.send(os.urandom(40_000).hex())

    with CaptureQueriesContext(connection) as asked:
        [cells] = rows(operator, "message")

    assert re.fullmatch(r"\d+\.\d KB in the database", cells[6].replace("\xa0", " "))
    assert [q for q in asked if "pg_column_size" in q["sql"]]


def test_a_very_large_body_is_shown_by_its_beginning(operator: Client, orders: BoundQueue) -> None:
    pk = orders.send("x" * 300_000)

    text = page(operator, "message", "change", pk)

    assert "… and 200,002 characters more" in text
    assert len(text) < 150_000


def test_dead_letter_shows_why_it_died(operator: Client, orders: BoundQueue) -> None:
    Message.objects.create_queue("dead")
    Queue.objects.filter(name="orders").update(dead_letter_queue=Queue.objects.get(name="dead"))
    pk = orders.send(1)
    Queue.objects.forget_all()
    [message] = orders.read()
    message.reject("ValueError: no such card\n  File <one>, line 7\n  File two, line 8")

    text = page(operator, "message", "change", pk)

    error = text.partition("field-error")[2].partition("</pre>")[0]
    assert "no such card\n  File &lt;one&gt;, line 7\n  File two, line 8" in error


@pytest.mark.parametrize("told", ["text", {"error": 7}, {"error": None}, [], None])
def test_headers_that_only_look_like_a_dead_letters_are_shown(
    operator: Client, orders: BoundQueue, told: Any
) -> None:
    pk = orders.send(1, headers={"x-dead-letter": told})

    assert "x-dead-letter" in page(operator, "message", "change", pk)


def test_times_have_seconds_and_are_never_none(operator: Client, failed: int) -> None:
    archived = page(operator, "archivedmessage", "change", failed)
    message = page(operator, "message", "change", failed)
    sent = Message.objects.get().enqueued_at

    assert f"{sent:%Y-%m-%d %H:%M:%S}" in archived
    assert f"{sent:%Y-%m-%d %H:%M:%S}" in message
    assert ">None<" not in archived + message


def test_control_and_direction_characters_are_codes(operator: Client, orders: BoundQueue) -> None:
    pk = orders.send({"file": "invoice\u202efdp.exe", "bell": "\x07"}, group="\u2066g")

    text = page(operator, "message", "change", pk) + page(operator, "message")

    assert "invoice\\u202efdp.exe" in text
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x07]", text)


@pytest.mark.parametrize(
    ("permissions", "actions"),
    [
        (["view_message"], set()),
        (["view_message", "settle_message"], {"archive_selected", "make_readable"}),
        (["view_message", "redrive_message"], {"redrive"}),
        (["view_message", "delete_message"], {"delete_for_good"}),
    ],
)
def test_actions_need_their_permission(
    staff: Callable[..., Client],
    orders: BoundQueue,
    permissions: list[str],
    actions: set[str],
) -> None:
    message_id = orders.send(1)
    client = staff(*permissions)

    text = page(client, "message")
    pk = Queue.objects.get().pk
    act(
        client,
        "message",
        "delete_for_good",
        0,
        confirmed="yes",
        select_across="1",
        selection=f'{{"{pk}": [{message_id}]}}',
    )

    every = {"archive_selected", "make_readable", "redrive", "delete_for_good"}
    assert {action for action in every if f'value="{action}"' in text} == actions
    assert Message.objects.exists() == ("delete_for_good" not in actions)


def test_list_is_closed_to_who_may_not_view(staff: Callable[..., Client]) -> None:
    client = staff("view_queue")

    response = client.get(reverse("admin:django_pgqueue_message_changelist"))

    assert response.status_code == 403


def test_an_archived_message_is_shown_also_where_django_uses_no_time_zones(
    operator: Client, failed: int, settings: Any
) -> None:
    settings.USE_TZ = False

    assert f"/archivedmessage/{failed}/change/" in page(operator, "message", "change", failed)
