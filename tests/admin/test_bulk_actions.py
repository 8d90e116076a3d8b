"""Bulk actions on more than a page: run in steps, and logged at start and end."""

from __future__ import annotations

import html
import os
import re
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.contrib.contenttypes.models import ContentType
from django.db import connection
from django.test import Client
from django.urls import reverse

from django_pgqueue import queue
from django_pgqueue.models import (
    ArchivedMessage,
    AuditEntry,
    BoundQueue,
    BulkAction,
    Message,
    Queue,
)
from django_pgqueue.queues import bulk
from tests.actors import Actor, drive
from tests.admin.conftest import answer, confirm, page
from tests.hindrances import hinder
from tests.waiting import until

LIST = "/admin/django_pgqueue/message/"


def ask(client: Client, action: str, **query: Any) -> tuple[str, str]:
    """Start an action on all messages of a list; returns the address and the confirmation page."""
    url = reverse("admin:django_pgqueue_message_changelist", query=query)
    response = client.post(url, {"action": action, "select_across": "1"})
    return url, response.content.decode()


def send_for(client: Client, bulk_action: BulkAction, verb: str) -> int:
    url = reverse(f"admin:django_pgqueue_bulkaction_{verb}", args=[bulk_action.pk])
    return client.post(url).status_code


def begun(client: Client, orders: BoundQueue, action: str = "delete") -> BulkAction:
    """Send 60 messages and confirm an action on all that are ready."""
    orders.send_batch(list(range(60)))
    confirm(client, *ask(client, action, state="ready"))
    return BulkAction.objects.get()


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step per request, of 20 messages."""
    monkeypatch.setattr(bulk, "PART", 20)
    monkeypatch.setattr("django_pgqueue.admin.bulk_actions.SECONDS", 0.0)


def test_an_action_on_more_than_a_page_is_a_row(operator, orders, slowly):
    orders.send_batch(list(range(60)))
    url, asked = ask(operator, "cancel", state="ready")

    text = confirm(operator, url, asked)

    bulk_action = BulkAction.objects.get()
    assert (bulk_action.kind, bulk_action.count, bulk_action.done) == ("cancel", 60, 20)
    assert (bulk_action.username, bulk_action.filter) == ("ann", {"state": "ready"})
    assert "20 of 60" in text
    assert "data-pgqueue-drive" in text


def test_its_page_drives_it_to_the_end(operator, orders, slowly):
    bulk_action = begun(operator, orders, "cancel")

    assert [send_for(operator, bulk_action, "step") for _ in range(2)] == [302, 302]

    assert ArchivedMessage.objects.count() == Message.objects.count() == 60
    text = page(operator, "bulkaction", "change", bulk_action.pk)
    assert "Done: 60 of 60 messages in " in text
    assert "data-pgqueue-drive" not in text


def test_it_is_in_the_audit_log_from_its_start(operator, orders, slowly):
    bulk_action = begun(operator, orders, "cancel")
    before = AuditEntry.objects.get(operation="cancel")
    drive()

    [entry] = AuditEntry.objects.filter(place="admin")
    assert (before.count < 60, before.ended_at) == (True, None)
    assert (entry.pk, entry.count, entry.ended_at is None) == (before.pk, 60, False)
    assert (entry.who, entry.queue_name) == ("ann", "orders")
    assert entry.arguments["bulk_action"] == bulk_action.pk


def test_160_there_after_a_question_about_60_and_60_go(operator, orders):
    orders.send_batch(list(range(60)))
    url, asked = ask(operator, "delete", state="ready")
    later = orders.send_batch(list(range(100)))

    confirm(operator, url, asked)

    assert "Delete 60 messages of orders for good, with their bodies?" in asked
    assert set(Message.objects.values_list("pk", flat=True)) == set(later)


def test_dead_letters_with_older_ids_that_came_after_the_question_stay(
    operator, orders, dead_letters
):
    older, *rest = orders.send_batch(list(range(61)))
    held, *messages = orders.read(qty=61)
    for message in messages:
        message.reject("no")
    dead = Queue.objects.get(name="dead").pk
    url, asked = ask(operator, "redrive", state="ready", queue=dead)
    held.reject("no")

    confirm(operator, url, asked)

    assert held.id == older
    assert [m.id for m in dead_letters.read(qty=100)] == [older]
    assert {m.id for m in orders.read(qty=100)} == set(rest)


def test_a_bulk_action_is_stopped_and_resumed(operator, orders, slowly):
    bulk_action = begun(operator, orders)

    send_for(operator, bulk_action, "stop")
    send_for(operator, bulk_action, "step")
    stopped = page(operator, "bulkaction", "change", bulk_action.pk)
    send_for(operator, bulk_action, "resume")

    assert "Stopped: 20 of 60 messages in " in stopped
    bulk_action.refresh_from_db()
    assert bulk_action.done == 40
    entries = AuditEntry.objects.filter(who="ann").order_by("pk")
    assert [(entry.operation, entry.count) for entry in entries] == [
        ("delete", 40),
        ("stop", None),
        ("resume", None),
    ]


def test_messages_in_flight_are_left_alone_unless_the_question_says_so(operator, orders):
    orders.send_batch(list(range(60)))
    orders.read(qty=60, vt=60)

    url, asked = ask(operator, "delete", state="in_flight")
    confirm(operator, url, asked)
    left = BulkAction.objects.get()
    confirm(operator, *ask(operator, "delete", state="in_flight"), **{"with-in_flight": "on"})

    assert (left.done, left.passed) == (0, 60)
    assert not Message.objects.exists()


def test_the_button_of_a_question_is_marked_where_it_deletes(operator, orders):
    orders.send_batch(list(range(60)))

    _url, deletes = ask(operator, "delete", state="ready")
    _url, cancels = ask(operator, "cancel", state="ready")

    marked = '<input type="submit" value="{}" class="danger">'
    assert marked.format("Delete") in deletes
    assert "danger" not in cancels


def test_redriving_goes_to_another_queue_at_a_rate(operator, orders, dead_letters):
    orders.send_batch(list(range(3)))
    for message in orders.read(qty=3):
        message.reject("no")
    Message.objects.create_queue("elsewhere")
    dead = Queue.objects.get(name="dead").pk
    url, asked = ask(operator, "redrive", state="ready", queue=dead)

    confirm(operator, url, asked, **{"with-to": "elsewhere", "with-rate": "1000"})

    assert "each to its source queue" in asked
    bulk_action = BulkAction.objects.get()
    assert (bulk_action.target, bulk_action.rate, bulk_action.done) == ("elsewhere", 1000.0, 3)
    assert queue("elsewhere").metrics().length == 3


@pytest.mark.parametrize("given", [{"with-rate": "-1"}, {"with-to": "nowhere"}])
def test_choices_that_cannot_be_are_asked_again(operator, orders, given):
    orders.send(1)
    url, asked = ask(operator, "redrive", state="ready")

    again = confirm(operator, url, asked, **given)

    assert "errorlist" in again
    assert not BulkAction.objects.exists()


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"at": "x", "extents": []}', '{"at": "2026-01-01", "extents": [1]}']
)
def test_an_answer_to_no_question_is_refused(operator, orders, text):
    orders.send(1)

    response = operator.post(
        LIST, {"action": "delete", "query": "state=ready", "confirmed": "1", "asked": text}
    )

    assert response.status_code == 400
    assert Message.objects.exists()


def test_purging_is_a_bulk_action(operator, orders):
    orders.send_batch(list(range(60)))
    orders.send_batch(list(range(5)), delay=60)
    held = orders.read(qty=2)
    url = reverse("admin:django_pgqueue_queue_purge", args=[Queue.objects.get().pk])

    asked = operator.get(url).content.decode()
    confirm(operator, url, asked, typed="orders")

    assert "Delete the 65 messages in orders? The archive stays." in asked
    bulk_action = BulkAction.objects.get()
    assert (bulk_action.kind, bulk_action.done, bulk_action.passed) == ("purge", 63, 2)
    assert {m.id for m in held} == set(Message.objects.values_list("pk", flat=True))


def test_a_bulk_action_shows_and_moves_for_who_may_only(operator, staff, orders, slowly):
    bulk_action = begun(operator, orders)
    operator.logout()
    bob = User.objects.create_user("bob", is_staff=True)
    bob.user_permissions.set(Permission.objects.filter(codename="view_bulkaction"))
    client = Client()
    client.force_login(bob)

    text = page(client, "bulkaction", "change", bulk_action.pk)

    assert "20 of 60" in text
    assert "<button" not in text.partition('id="pgqueue-live"')[2]
    for verb in ("step", "stop", "resume"):
        assert send_for(client, bulk_action, verb) == 403
        url = reverse(f"admin:django_pgqueue_bulkaction_{verb}", args=[bulk_action.pk])
        assert client.get(url).status_code == 405
    bob.user_permissions.clear()
    client.force_login(User.objects.get(pk=bob.pk))
    url = reverse("admin:django_pgqueue_bulkaction_change", args=[bulk_action.pk])
    assert client.get(url).status_code == 403


def test_the_list_of_bulk_actions_shows_how_far_they_are(operator, orders, slowly):
    begun(operator, orders)

    text = html.unescape(re.sub("<[^>]+>", " ", page(operator, "bulkaction")))

    assert re.search(r"Delete\s+orders\s+running\s+20 of 60 messages\s+20\s+ann", text)


@pytest.mark.slow
def test_a_process_killed_midway_leaves_the_rest_to_the_next_one(committed_orders, reachable):
    """Nothing is lost or done twice, and the end is logged once."""
    ContentType.objects.clear_cache()  # another test's flush deleted the rows
    ann = User.objects.create_superuser("ann")
    ids = committed_orders.send_batch(list(range(30_000)))
    committed_orders.archive(ids)
    values = {"user_id": str(ann.pk), "username": "ann"}
    bulk_action = BulkAction.objects.begin(Queue.objects.get(), bulk.Kind.REPLAY, ids, values)

    with Actor(reachable) as actor:
        pid = actor.do(os.getpid)
        actor.start(drive)
        until(lambda: BulkAction.objects.get().done > 0)
        os.kill(pid, signal.SIGKILL)
    bulk_action.refresh_from_db()
    killed_at = bulk_action.done

    def ended() -> bool:  # the server may finish the killed process's step a moment later
        drive()
        bulk_action.refresh_from_db()
        return bulk_action.state != BulkAction.RUNNING

    until(ended)
    assert 0 < killed_at < 30_000
    assert (bulk_action.state, bulk_action.done, bulk_action.passed) == ("done", 30_000, 0)
    again = Message.objects.filter(headers__has_key="x-replay-of")
    assert again.values("headers__x-replay-of").distinct().count() == again.count() == 30_000
    entry = AuditEntry.objects.get(operation="replay")
    assert (entry.count, entry.ended_at is None) == (30_000, False)


@pytest.fixture
def archived(orders: BoundQueue) -> Callable[[int], list[int]]:
    """Archive ``number`` messages of orders, so that they can be replayed."""

    def archive(number: int) -> list[int]:
        ids = orders.send_batch(list(range(number)))
        orders.archive(ids)
        return ids

    return archive


@pytest.fixture
def root(committed: None) -> Client:
    ContentType.objects.clear_cache()  # another test's flush deleted the rows
    client = Client()
    client.force_login(User.objects.create_superuser("ann"))
    return client


@pytest.mark.parametrize("number", [3, 60])
def test_an_answer_that_is_sent_twice_is_one_bulk_action(operator, orders, archived, number):
    archived(number)
    url, asked = ask(operator, "replay", state="completed")

    confirm(operator, url, asked)
    again = confirm(operator, url, asked)

    assert orders.metrics().length == number
    bulk_action = BulkAction.objects.get()
    assert (bulk_action.state, bulk_action.count, bulk_action.done) == ("done", number, number)
    assert "submitted before" in again


@pytest.mark.parametrize("number", [3, 60])
def test_the_same_question_asked_anew_is_another_bulk_action(operator, orders, archived, number):
    archived(number)

    url, first = ask(operator, "replay", state="completed")
    confirm(operator, url, first)
    url, second = ask(operator, "replay", state="completed")
    confirm(operator, url, second)

    assert "requested before" not in first
    assert "The same action was requested before. Bulk action " in second
    assert f"done, {number} of {number} messages" in second
    assert BulkAction.objects.count() == 2
    assert orders.metrics().length == 2 * number


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("number", [3, 60])
def test_a_double_click_is_one_bulk_action(root, committed_orders, number):
    ids = committed_orders.send_batch(list(range(number)))
    committed_orders.archive(ids)
    url, asked = ask(root, "replay", state="completed")

    def click(_: int) -> int:
        try:
            twin = Client()
            twin.cookies = root.cookies
            return twin.post(url, answer(asked)).status_code
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as threads:
        codes = list(threads.map(click, range(4)))

    drive()
    assert codes == [302] * 4
    assert committed_orders.metrics().length == number
    assert BulkAction.objects.get().done == number


def test_a_request_drives_its_own_bulk_action_only(operator, orders, slowly):
    other = BulkAction.objects.begin(
        Queue.objects.get(), bulk.Kind.DELETE, orders.send_batch([1, 2], delay=60), {}
    )
    orders.send_batch(list(range(60)))

    confirm(operator, *ask(operator, "delete", state="ready"))

    other.refresh_from_db()
    assert (other.state, other.done) == ("running", 0)
    assert BulkAction.objects.exclude(pk=other.pk).get().done == 20


def test_a_request_shows_the_error_of_the_bulk_action_that_it_began(operator, archived):
    archived(60)
    Message.objects.create_queue("audited")
    allow = hinder("audited", "RAISE EXCEPTION 'none allowed';")
    asked = ask(operator, "replay", state="completed")

    text = confirm(operator, *asked, **{"with-to": "audited"})

    assert "Failed: 0 of 60 messages" in text
    assert "none allowed" in text
    assert "data-pgqueue-drive" not in text
    allow()
    send_for(operator, BulkAction.objects.get(), "resume")
    assert queue("audited").metrics().length == 60


@pytest.mark.django_db(transaction=True)
def test_a_connection_lost_after_the_commit_fails_no_request(root, committed_orders):
    ids = committed_orders.send_batch(list(range(60)))
    committed_orders.archive(ids)
    Message.objects.create_queue("audited")
    hinder("audited", cut_at=30)
    asked = ask(root, "replay", state="completed")

    begun = confirm(root, *asked, **{"with-to": "audited"})
    bulk_action = BulkAction.objects.get()
    stepped = send_for(root, bulk_action, "step")

    assert "Running: 0 of 60 messages" in begun
    assert stepped == 302
    bulk_action.refresh_from_db()
    assert (bulk_action.state, bulk_action.done) == ("done", 60)
    assert queue("audited").metrics().length == 60


def test_few_messages_go_all_or_none(operator, orders, archived):
    archived(3)
    queue("mails").create()
    queue("mails").archive(queue("mails").send_batch([1, 2]))
    allow = hinder("mails", "RAISE EXCEPTION 'no mail allowed';")
    url, asked = ask(operator, "replay", state="completed")

    refused = confirm(operator, url, asked)

    assert "Nothing was changed: no mail allowed" in refused
    assert orders.metrics().length == 0
    assert not BulkAction.objects.exists()
    assert not AuditEntry.objects.filter(place="admin").exists()
    allow()
    confirm(operator, url, asked)
    assert (orders.metrics().length, queue("mails").metrics().length) == (3, 2)


def test_who_may_not_see_bulk_actions_is_told_of_the_one_that_began(staff, orders, slowly):
    client = staff("view_message", "delete_message")
    orders.send_batch(list(range(60)))

    text = confirm(client, *ask(client, "delete", state="ready"))

    assert f"Bulk action {BulkAction.objects.get().pk}, started at " in text
    assert "running, 20 of 60 messages" in text


def test_two_who_cancel_the_same_messages_are_told_how_many_each_changed(
    operator, orders, monkeypatch
):
    monkeypatch.setattr("django_pgqueue.admin.bulk_actions.drive", lambda *args: None)
    orders.send_batch(list(range(60)))
    questions = [ask(operator, "cancel", state="ready") for _ in range(2)]
    for url, asked in questions:
        confirm(operator, url, asked)

    drive()

    text = page(operator, "bulkaction")
    assert re.findall(r'field-progress"[^>]*>([^<]*)<', text) == ["60 of 60 messages"] * 2
    changed = [int(number) for number in re.findall(r'field-changed"[^>]*>(\d+)<', text)]
    assert changed == [each.done for each in BulkAction.objects.all()]
    assert sum(changed) == 60


def test_dropping_a_queue_keeps_the_record_of_its_bulk_actions(operator, orders, slowly):
    bulk_action = begun(operator, orders, "cancel")

    Message.objects.drop_queue("orders")

    bulk_action.refresh_from_db()
    assert (bulk_action.state, bulk_action.done) == ("failed", 20)
    assert not bulk_action.resume()
    assert send_for(operator, bulk_action, "resume") == 404
    for text in (
        page(operator, "bulkaction"),
        page(operator, "bulkaction", "change", bulk_action.pk),
    ):
        assert "orders" in text
        assert "20 of 60 messages" in text
    assert "The queue was dropped." in text
