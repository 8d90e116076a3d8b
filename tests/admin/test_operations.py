"""Operations: actions on more than a page, in steps, logged at both ends."""

from __future__ import annotations

import html
import os
import re
import signal
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.contrib.contenttypes.models import ContentType
from django.test import Client
from django.urls import reverse

from django_pgqueue import queue
from django_pgqueue.models import ArchivedMessage, BoundQueue, Message, Operation, Queue, bulk
from tests.actors import Actor, drive
from tests.admin.conftest import confirm, page
from tests.waiting import until

LIST = "/admin/django_pgqueue/message/"


def ask(client: Client, action: str, **query: Any) -> tuple[str, str]:
    """Ask about all messages of a list; the address, and the question."""
    url = reverse("admin:django_pgqueue_message_changelist", query=query)
    response = client.post(url, {"action": action, "select_across": "1"})
    return url, response.content.decode()


def send_for(client: Client, operation: Operation, verb: str) -> int:
    url = reverse(f"admin:django_pgqueue_operation_{verb}", args=[operation.pk])
    return client.post(url).status_code


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step at a time, of 20 messages."""
    monkeypatch.setattr(bulk, "PART", 20)
    monkeypatch.setattr("django_pgqueue.admin.operations.SECONDS", 0.0)


def test_an_action_on_more_than_a_page_is_a_row(
    operator: Client, orders: BoundQueue, slowly: None
) -> None:
    orders.send_batch(list(range(60)))
    url, asked = ask(operator, "archive_selected", state="ready")

    text = confirm(operator, url, asked)

    operation = Operation.objects.get()
    assert (operation.kind, operation.count, operation.done) == ("archive", 60, 20)
    assert (operation.username, operation.filter) == ("ann", {"state": "ready"})
    assert "20 of 60" in text
    assert "data-pgqueue-drive" in text


def test_its_page_drives_it_to_the_end(operator: Client, orders: BoundQueue, slowly: None) -> None:
    ids = orders.send_batch(list(range(60)))
    confirm(operator, *ask(operator, "archive_selected", state="ready"))
    operation = Operation.objects.get()

    assert [send_for(operator, operation, "step") for _ in range(2)] == [302, 302]

    assert set(ArchivedMessage.objects.values_list("pk", flat=True)) == set(ids)
    text = page(operator, "operation", "change", operation.pk)
    assert "Done: 60 of 60 messages in " in text
    assert "data-pgqueue-drive" not in text


def test_both_ends_are_logged_in_the_queues_history(
    operator: Client, orders: BoundQueue, slowly: None
) -> None:
    ids = orders.send_batch(list(range(60)))
    confirm(operator, *ask(operator, "archive_selected", state="ready"))
    operation = Operation.objects.get()
    begun = [entry.get_change_message() for entry in LogEntry.objects.all()]
    while Operation.objects.drive(using="default") is not None:
        pass

    told = [entry.get_change_message() for entry in LogEntry.objects.order_by("pk")]
    assert begun == told[:1]
    what = f"Archive messages, 60 messages up to id {ids[-1]}: operation {operation.pk}"
    assert told == [f"{what} begun.", f"{what} ended: 60 archived."]
    assert {entry.object_repr for entry in LogEntry.objects.all()} == {"orders"}
    assert {entry.user.username for entry in LogEntry.objects.all()} == {"ann"}


def test_160_there_after_a_question_about_60_and_60_go(
    operator: Client, orders: BoundQueue
) -> None:
    there = orders.send_batch(list(range(60)))
    url, asked = ask(operator, "delete_for_good", state="ready")
    later = orders.send_batch(list(range(100)))

    confirm(operator, url, asked)

    assert f"60 in all, up to id {there[-1]}" in asked
    assert set(Message.objects.values_list("pk", flat=True)) == set(later)


def test_dead_letters_with_older_ids_that_came_after_the_question_stay(
    operator: Client, orders: BoundQueue
) -> None:
    dead = Message.objects.create_queue("dead")
    Queue.objects.filter(name="orders").update(dead_letter_queue=dead)
    Queue.objects.forget_all()
    older, *rest = orders.send_batch(list(range(61)))
    held, *messages = orders.read(qty=61)
    for message in messages:
        message.reject("no")
    url, asked = ask(operator, "redrive", state="ready", queue=dead.pk)
    held.reject("no")

    confirm(operator, url, asked)

    assert held.id == older
    assert [m.id for m in queue("dead").read(qty=100)] == [older]
    assert {m.id for m in orders.read(qty=100)} == set(rest)


def test_an_operation_is_stopped_and_resumed(
    operator: Client, orders: BoundQueue, slowly: None
) -> None:
    orders.send_batch(list(range(60)))
    confirm(operator, *ask(operator, "delete_for_good", state="ready"))
    operation = Operation.objects.get()

    send_for(operator, operation, "stop")
    send_for(operator, operation, "step")
    stopped = page(operator, "operation", "change", operation.pk)
    send_for(operator, operation, "resume")

    assert "Stopped: 20 of 60 messages in " in stopped
    operation.refresh_from_db()
    assert operation.done == 40
    told = [entry.get_change_message() for entry in LogEntry.objects.order_by("pk")]
    assert [text.split(": operation")[1].split(" ", 2)[2] for text in told] == [
        "begun.",
        "stopped after 20 messages.",
        "resumed.",
    ]


def test_messages_in_flight_are_left_alone_unless_the_question_says_so(
    operator: Client, orders: BoundQueue
) -> None:
    orders.send_batch(list(range(60)))
    orders.read(qty=60, vt=60)

    url, asked = ask(operator, "delete_for_good", state="in_flight")
    confirm(operator, url, asked)
    left = Operation.objects.get()
    confirm(operator, url, asked, **{"with-in_flight": "on"})

    assert (left.done, left.passed) == (0, 60)
    assert not Message.objects.exists()


def test_the_button_of_a_question_is_marked_where_it_deletes(
    operator: Client, orders: BoundQueue
) -> None:
    orders.send_batch(list(range(60)))

    _url, deletes = ask(operator, "delete_for_good", state="ready")
    _url, archives = ask(operator, "archive_selected", state="ready")

    marked = '<input type="submit" value="{}" class="danger">'
    assert marked.format("Delete messages for good") in deletes
    assert "danger" not in archives


def test_redriving_goes_to_another_queue_at_a_rate(operator: Client, orders: BoundQueue) -> None:
    dead = Message.objects.create_queue("dead")
    orders.send_batch(list(range(3)))
    Queue.objects.filter(name="orders").update(dead_letter_queue=dead)
    Queue.objects.forget_all()
    for message in orders.read(qty=3):
        message.reject("no")
    Message.objects.create_queue("elsewhere")
    url, asked = ask(operator, "redrive", state="ready", queue=dead.pk)

    confirm(operator, url, asked, **{"with-to": "elsewhere", "with-rate": "1000"})

    assert "the queue that each came from" in asked
    operation = Operation.objects.get()
    assert (operation.target, operation.rate, operation.done) == ("elsewhere", 1000.0, 3)
    assert queue("elsewhere").metrics().length == 3


@pytest.mark.parametrize("given", [{"with-rate": "-1"}, {"with-to": "nowhere"}])
def test_choices_that_cannot_be_are_asked_again(
    operator: Client, orders: BoundQueue, given: dict[str, str]
) -> None:
    orders.send(1)
    url, asked = ask(operator, "redrive", state="ready")

    again = confirm(operator, url, asked, **given)

    assert "errorlist" in again
    assert not Operation.objects.exists()


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"at": "x", "extents": []}', '{"at": "2026-01-01", "extents": [1]}']
)
def test_an_answer_to_no_question_is_refused(
    operator: Client, orders: BoundQueue, text: str
) -> None:
    orders.send(1)

    response = operator.post(
        LIST, {"action": "delete_for_good", "query": "state=ready", "confirmed": "1", "asked": text}
    )

    assert response.status_code == 400
    assert Message.objects.exists()


def test_purging_is_an_operation(operator: Client, orders: BoundQueue) -> None:
    orders.send_batch(list(range(60)))
    orders.send_batch(list(range(5)), delay=60)
    held = orders.read(qty=2)
    url = reverse("admin:django_pgqueue_queue_purge", args=[Queue.objects.get().pk])

    asked = operator.get(url).content.decode()
    confirm(operator, url, asked, typed="orders")

    assert "orders: 65 messages" in asked
    operation = Operation.objects.get()
    assert (operation.kind, operation.done, operation.passed) == ("purge", 63, 2)
    assert {m.id for m in held} == set(Message.objects.values_list("pk", flat=True))


def test_an_operation_shows_and_moves_for_who_may_only(
    operator: Client, staff: Callable[..., Client], orders: BoundQueue, slowly: None
) -> None:
    orders.send_batch(list(range(60)))
    confirm(operator, *ask(operator, "delete_for_good", state="ready"))
    operation = Operation.objects.get()
    operator.logout()
    bob = User.objects.create_user("bob", is_staff=True)
    bob.user_permissions.set(Permission.objects.filter(codename="view_operation"))
    client = Client()
    client.force_login(bob)

    text = page(client, "operation", "change", operation.pk)

    assert "20 of 60" in text
    assert "<button" not in text.partition('id="pgqueue-live"')[2]
    for verb in ("step", "stop", "resume"):
        assert send_for(client, operation, verb) == 403
        url = reverse(f"admin:django_pgqueue_operation_{verb}", args=[operation.pk])
        assert client.get(url).status_code == 405
    bob.user_permissions.clear()
    client.force_login(User.objects.get(pk=bob.pk))
    url = reverse("admin:django_pgqueue_operation_change", args=[operation.pk])
    assert client.get(url).status_code == 403


def test_the_list_of_operations_shows_how_far_they_are(
    operator: Client, orders: BoundQueue, slowly: None
) -> None:
    orders.send_batch(list(range(60)))
    confirm(operator, *ask(operator, "delete_for_good", state="ready"))

    text = html.unescape(re.sub("<[^>]+>", " ", page(operator, "operation")))

    assert re.search(r"for good\s+orders\s+running\s+20 of 60 messages\s+ann", text)


@pytest.mark.slow
def test_a_process_killed_midway_leaves_the_rest_to_the_next_one(
    committed_orders: BoundQueue, reachable: dict[str, dict[str, Any]]
) -> None:
    """Nothing is lost, nothing is done twice, and the end is logged once."""
    ContentType.objects.clear_cache()  # the flush of another test took the rows
    ann = User.objects.create_superuser("ann")
    ids = committed_orders.send_batch(list(range(30_000)))
    committed_orders.archive(ids)
    values = {"user_id": str(ann.pk), "username": "ann"}
    operation = Operation.objects.begin(Queue.objects.get(), bulk.Kind.REPLAY, ids, values)

    with Actor(reachable) as actor:
        pid = actor.do(os.getpid)
        actor.start(drive)
        until(lambda: Operation.objects.get().done > 0)
        os.kill(pid, signal.SIGKILL)
    operation.refresh_from_db()
    killed_at = operation.done

    def ended() -> bool:  # the server may hold the step of the killed process a moment longer
        drive()
        operation.refresh_from_db()
        return operation.state != Operation.RUNNING

    until(ended)
    assert 0 < killed_at < 30_000
    assert (operation.state, operation.done, operation.passed) == ("done", 30_000, 0)
    again = Message.objects.filter(headers__has_key="x-replay-of")
    assert again.values("headers__x-replay-of").distinct().count() == again.count() == 30_000
    [logged] = LogEntry.objects.all()
    assert "ended: 30,000 sent again" in logged.get_change_message()
