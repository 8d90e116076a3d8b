"""The messages' page: what each one is, where it stands, and settling it by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_pgqueue import queue
from django_pgqueue.admin import pages, states
from django_pgqueue.models import ArchivedMessage, BoundQueue, Message, Queue
from tests.admin.conftest import act, page, rows


@pytest.fixture
def one_in_each_state(orders: BoundQueue) -> dict[str, int]:
    """Ids by the state that they are in."""
    ids = {
        state: orders.send({"will be": state})
        for state in ("COMPLETED", "FAILED", "RETRYABLE", "PROCESSING")
    }
    completed, failed, retryable, _ = orders.read(qty=4)
    orders.archive(completed)
    failed.reject("no")
    retryable.nack(60)
    ids["SCHEDULED"] = orders.send({"will be": "SCHEDULED"}, delay=60)
    ids["PENDING"] = orders.send({"will be": "PENDING"})
    return ids


def test_list_shows_where_each_message_stands(
    operator: Client, one_in_each_state: dict[str, int]
) -> None:
    listed = {int(cells[0]): cells for cells in rows(operator, "message")}

    assert {cells[2]: pk for pk, cells in listed.items()} == one_in_each_state
    assert listed[one_in_each_state["PROCESSING"]][1:4] == ["orders", "PROCESSING", "1"]
    assert listed[one_in_each_state["PENDING"]][6] == '{"will be": "PENDING"}'


def test_list_is_newest_first(operator: Client, orders: BoundQueue) -> None:
    ids = orders.send_batch([1, 2, 3])

    assert [int(cells[0]) for cells in rows(operator, "message")] == ids[::-1]


@pytest.mark.parametrize(
    "state", ["PENDING", "SCHEDULED", "PROCESSING", "RETRYABLE", "COMPLETED", "FAILED"]
)
def test_state_filter_finds_the_messages_in_it(
    operator: Client, one_in_each_state: dict[str, int], state: str
) -> None:
    queue("mails").create()
    queue("mails").send(1)
    orders = Queue.objects.get(name="orders").pk

    of_all = {cells[0] for cells in rows(operator, "message", state=state)}
    of_orders = {
        cells[0] for cells in rows(operator, "message", state=state, queue__id__exact=orders)
    }

    assert of_orders == {str(one_in_each_state[state])}
    assert of_all >= of_orders
    assert len(of_all) == (2 if state == "PENDING" else 1)


def test_state_filter_knows_unlogged_queues(operator: Client, orders: BoundQueue) -> None:
    queue("fast").create(unlogged=True)
    fresh, delayed = queue("fast").send(1), queue("fast").send(2, delay=60)

    assert [cells[0] for cells in rows(operator, "message", state="PENDING")] == [str(fresh)]
    assert [cells[0] for cells in rows(operator, "message", state="SCHEDULED")] == [str(delayed)]


def test_state_filter_looks_at_the_newest_only(
    operator: Client, orders: BoundQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = orders.send_batch([1, 2, 3, 4], delay=60)
    monkeypatch.setattr(states.newest, "__defaults__", (2,))

    listed = rows(operator, "message", state="SCHEDULED")

    assert [int(cells[0]) for cells in listed] == [ids[3], ids[2]]


def test_state_filter_shows_so_many_at_most(
    operator: Client, orders: BoundQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = orders.send_batch([1, 2, 3, 4])
    monkeypatch.setattr(states, "SHOWN", 2)

    listed = rows(operator, "message", state="PENDING", queue__id__exact=Queue.objects.get().pk)

    assert [int(cells[0]) for cells in listed] == [ids[1], ids[0]]


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

    assert "1 message no longer in the queue: left alone." in text
    assert ArchivedMessage.objects.get().state == "FAILED"


def test_deleting_asks_first(operator: Client, orders: BoundQueue) -> None:
    first, second = orders.send_batch([1, 2])

    asked = act(operator, "message", "delete_for_good", first)
    assert Message.objects.count() == 2
    done = act(operator, "message", "delete_for_good", first, confirmed="yes")

    assert "orders: 1 message" in asked
    assert f'name="_selected_action" value="{first}"' in asked
    assert "1 message deleted." in done
    assert Message.objects.get().pk == second


def test_selecting_all_pages_acts_on_what_the_filters_leave_and_the_list_counts(
    operator: Client, orders: BoundQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = orders.send_batch(list(range(60)))
    queue("mails").create()
    queue("mails").send("stays")
    monkeypatch.setattr("django_pgqueue.admin.messages.CAP", 55)
    url = reverse("admin:django_pgqueue_message_changelist")

    operator.post(
        f"{url}?queue__id__exact={Queue.objects.get(name='orders').pk}",
        {"action": "archive_selected", "_selected_action": [ids[0]], "select_across": "1"},
    )

    assert set(ArchivedMessage.objects.values_list("pk", flat=True)) == set(ids[5:])
    assert queue("mails").metrics().length == 1


@pytest.mark.parametrize(
    ("permissions", "actions"),
    [
        (["view_message"], set()),
        (["change_message"], {"archive_selected", "make_readable"}),
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
    act(client, "message", "delete_for_good", message_id, confirmed="yes")

    every = {"archive_selected", "make_readable", "delete_for_good"}
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
