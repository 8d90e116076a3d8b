"""Permissions: which users may do what to which queues."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission
from django.test import Client
from django.urls import reverse

from django_pgqueue import queue
from django_pgqueue.admin.failures import WINDOWS, Failures
from django_pgqueue.models import (
    ArchivedMessage,
    BulkAction,
    ExportRun,
    Lake,
    Message,
    Process,
    Queue,
    Rollup,
    Schedule,
)
from django_pgqueue.queues.bulk import Kind
from tests.admin.conftest import act, confirm, overview, page

NOW = dt.datetime(2026, 11, 21, 12, tzinfo=dt.timezone.utc)

MEANINGFUL = {
    *(f"{verb}_queue" for verb in ("add", "view", "change", "delete", "pause", "purge", "seek")),
    *(f"{verb}_message" for verb in ("view", "send", "settle", "redrive", "delete")),
    *("replay_archivedmessage", "view_bulkaction"),
    *(f"view_{name}" for name in ("process", "health", "rollup", "rolluprun", "exportrun")),
    *("view_lake", "change_lake", "view_auditentry"),
    *(f"{verb}_schedule" for verb in ("add", "view", "change", "delete")),
    *(f"{verb}_binding" for verb in ("add", "view", "delete")),
    *("view_batch", "change_batch"),
    *("quiet_process", "view_stack", "acknowledge_alert"),
}


def test_there_is_a_permission_for_each_action_and_none_without_a_meaning(db):
    known = Permission.objects.filter(content_type__app_label="django_pgqueue")
    of_maintenance = {"caretaker"}

    found = known.exclude(content_type__model__in=of_maintenance)

    assert set(found.values_list("codename", flat=True)) == MEANINGFUL


@pytest.fixture
def shared(staff: Callable[..., Client], settings: Any) -> tuple[Client, Queue, Queue]:
    """A client that may see ann.orders only, and another queue with the same contents."""
    settings.PGQUEUE = {"QUEUES_FOR": "tests.admin.access.ours"}
    made = []
    for name in ("ann.orders", "bob.secret"):
        made.append(Message.objects.create_queue(name))
        bound = queue(name)
        bound.send({"of": name}, group=f"group of {name}")
        done, failed = bound.send_batch([{"of": name}] * 2)
        bound.archive(done)
        [message] = [m for m in bound.read(qty=5) if m.id == failed]
        message.reject(f"error of {name}")
        bound.send({"of": name})
        Rollup.objects.create(queue_name=name, seconds=3600, bucket=NOW, sent=7)
        Process.objects.create(host=f"host-of-{name}", pid=1, version="1", queues=[name])
        lake = Lake.objects.create(path=f"/lake/of/{name}", queues=[name])
        ExportRun.objects.create(lake=lake)
        Schedule.objects.create(name=f"of {name}", queue=made[-1], interval=dt.timedelta(days=1))
        Message.objects.bind(f"{name}.#", name)
    Lake.objects.create(path="/lake/of/all/and/bob.secret")
    client = staff(*MEANINGFUL)
    return client, made[0], made[1]


def test_nothing_of_other_queues_is_on_any_page(shared):
    client, ours, theirs = shared
    message = Message.objects.filter(queue=ours).latest("pk")
    failed = ArchivedMessage.objects.get(queue=ours, state="FAILED")
    secret = Message.objects.filter(queue=theirs).latest("pk").pk
    kind, secret_kind = (
        Failures([each.pk], [], WINDOWS["1h"]).groups(1)[0].kind for each in (ours, theirs)
    )
    of_theirs = reverse("admin:django_pgqueue_message_failure", args=[secret_kind])
    for each in (ours, theirs):
        BulkAction.objects.begin(each, Kind.DELETE, [1], {"username": f"of {each.name}"})
    shown = [
        page(client, "queue"),
        page(client, "queue", q="bob"),
        page(client, "queue", "change", ours.pk),
        page(client, "queue", "overview", ours.pk),
        page(client, "queue", "send", ours.pk, copy=message.pk),
        page(client, "queue", "delete", ours.pk),
        client.get(reverse("admin:django_pgqueue_overview_json")).content.decode(),
        page(client, "message"),
        page(client, "message", "change", message.pk),
        page(client, "message", "change", failed.pk),
        page(client, "schedule"),
        page(client, "schedule", "change", Schedule.objects.get(queue=ours).pk),
        page(client, "rollup"),
        page(client, "rollup", "charts"),
        page(client, "rollup", "charts", queue="bob.secret"),
        page(client, "process"),
        page(client, "message", "failures"),
        page(client, "message", "failures", queue=theirs.pk),
        page(client, "message", "failure", kind),
        client.get(of_theirs, follow=True).content.decode(),
        page(client, "bulkaction"),
        b"".join(
            client.get(
                reverse("admin:django_pgqueue_message_changelist"), {"export": "jsonl"}
            ).streaming_content
        ).decode(),
        *(
            page(client, "message", q=words)
            for words in (str(secret), "body.of:ann.orders", "body.x:1")
        ),
        page(client, "message", group="group of ann.orders"),
        page(client, "lake"),
        page(client, "exportrun"),
        page(client, "binding"),
        page(client, "binding", "add"),
        client.get(reverse("admin:django_pgqueue_health")).content.decode(),
        *(page(client, "message", state=place, queue=theirs.pk) for place in ("ready", "failed")),
        *(
            page(client, "message", state=place)
            for place in ("ready", "due", "in_flight", "waiting", "completed", "failed")
        ),
    ]

    assert "ann.orders" in shown[0]
    # The page may repeat what the user asked for.
    for text in shown:
        for said in ("Charts of bob.secret", "roll-ups of bob.secret"):
            text = text.replace(said, "")
        # The dot, since a random token never contains one.
        assert "bob." not in text
    assert list(overview(client)) == ["ann.orders"]


def test_pages_of_other_queues_are_not_there(shared):
    client, ours, theirs = shared
    message = Message.objects.filter(queue=theirs).latest("pk")
    failed = ArchivedMessage.objects.get(queue=theirs, state="FAILED")

    for name, pk in (
        ("queue_change", theirs.pk),
        ("queue_delete", theirs.pk),
        ("queue_history", theirs.pk),
        ("queue_overview", theirs.pk),
        ("queue_send", theirs.pk),
        ("message_change", message.pk),
        ("message_change", failed.pk),
    ):
        url = reverse(f"admin:django_pgqueue_{name}", args=[pk])
        expected = (404,) if name in ("queue_overview", "queue_send") else (302, 404)
        assert client.get(url).status_code in expected, name
    bulk_action = BulkAction.objects.begin(theirs, Kind.DELETE, [message.pk], {})
    for verb in ("step", "stop", "resume"):
        url = reverse(f"admin:django_pgqueue_bulkaction_{verb}", args=[bulk_action.pk])
        assert client.post(url).status_code == 404
    url = reverse("admin:django_pgqueue_bulkaction_change", args=[bulk_action.pk])
    assert client.get(url).status_code == 404
    for each in (ours, theirs):
        url = reverse("admin:django_pgqueue_queue_send", args=[each.pk])
        given = {"body": "1", "priority": "0"}
        assert client.post(f"{url}?copy={message.pk}", given).status_code == 404
    process = Process.objects.get(queues=[theirs.name])
    url = reverse("admin:django_pgqueue_process_quiet", args=[process.pk])
    assert client.post(url).status_code == 404
    schedule = Schedule.objects.get(queue=theirs)
    for verb in ("run", "pause", "resume"):
        url = reverse(f"admin:django_pgqueue_schedule_{verb}", args=[schedule.pk])
        assert client.post(url).status_code == 404
    for action in ("pause", "resume", "purge"):
        url = reverse(f"admin:django_pgqueue_queue_{action}", args=[theirs.pk])
        assert client.post(url, {"confirmed": "yes", "typed": "bob.secret"}).status_code == 404
    assert client.get(reverse("admin:django_pgqueue_queue_add")).status_code == 403
    assert Message.objects.filter(queue=theirs).exists()
    assert not Queue.objects.filter(paused=True).exists()


@pytest.mark.parametrize(
    "action",
    ["readable", "redrive", "cancel", "delete", "replay", "discard"],
)
def test_actions_reach_no_message_of_other_queues(shared, action):
    client, _, theirs = shared
    pks = list(Message.objects.filter(queue=theirs).values_list("pk", flat=True))
    before = list(ArchivedMessage.objects.filter(queue=theirs).values_list("pk", flat=True))

    url = reverse("admin:django_pgqueue_message_changelist")
    for chosen in (
        {"_selected_action": pks},
        {"select_across": "1", "query": f"queue={theirs.pk}"},
        {"select_across": "1", "query": f"q={'+'.join(map(str, pks))}"},
        {"select_across": "1", "query": f"state=failed&queue={theirs.pk}"},
    ):
        asked = client.post(url, {"action": action, **chosen, "with-in_flight": "on"})
        if asked.status_code == 200:
            assert "bob." not in asked.content.decode()
            extents = [{str(theirs.pk): [1000, 2**62]}]
            question = {"at": "2100-01-01T00:00:00+00:00", "question": str(uuid4())}
            everything = json.dumps({**question, "extents": extents})
            confirmed = {"action": action, **chosen, "confirmed": "yes", "asked": everything}
            assert client.post(url, confirmed).status_code != 400

    assert set(Message.objects.filter(queue=theirs).values_list("pk", flat=True)) == set(pks)
    after = ArchivedMessage.objects.filter(queue=theirs).values_list("pk", flat=True)
    assert list(after) == before


def test_a_dead_letter_queue_that_may_not_be_seen_is_kept(shared):
    client, ours, theirs = shared
    Queue.objects.filter(pk=ours.pk).update(dead_letter_queue=theirs)
    url = reverse("admin:django_pgqueue_queue_change", args=[ours.pk])

    text = client.get(url).content.decode()
    settings = {"visibility_timeout": 77, "max_deliveries": 20, "dead_letter_queue": ours.pk}
    client.post(url, settings)

    assert "bob." not in text
    ours.refresh_from_db()
    assert (ours.visibility_timeout, ours.dead_letter_queue) == (77, theirs)


def test_a_source_that_may_not_be_seen_stays_without_a_name(shared):
    client, ours, theirs = shared
    Queue.objects.filter(pk=theirs.pk).update(dead_letter_queue=ours)

    text = page(client, "queue")

    assert "from another queue" in text
    assert "bob." not in text
    assert "bob." not in page(client, "queue", "delete", ours.pk)


def test_purging_takes_the_name(operator, orders):
    orders.send(1)
    url = reverse("admin:django_pgqueue_queue_purge", args=[Queue.objects.get().pk])

    asked = confirm(operator, url, operator.get(url).content.decode(), typed="order")

    assert "type the name of the queue to confirm" in asked
    assert orders.metrics().length == 1


def test_dropping_takes_the_name(operator, orders):
    url = reverse("admin:django_pgqueue_queue_delete", args=[Queue.objects.get().pk])

    for typed in ("", "order", "ORDERS"):
        response = operator.post(url, {"post": "yes", "typed": typed}, follow=True)
        assert "type the name of the queue to confirm" in response.content.decode()

    assert Queue.objects.exists()
    assert 'name="typed"' in operator.get(url).content.decode()


def test_dead_letters_are_redriven_by_who_may(operator, orders, dead_letters):
    first, second = orders.send_batch([1, 2])
    for message in orders.read(qty=2):
        message.reject("no")

    text = act(operator, "message", "redrive", first)

    assert "1 message redriven." in text
    assert [m.id for m in orders.read(qty=5)] == [first]
    assert [m.id for m in dead_letters.read(qty=5)] == [second]


def test_an_archive_is_sent_again_by_who_may_only(staff, failed):
    client = staff("view_message")
    url = reverse("admin:django_pgqueue_message_changelist")

    text = page(client, "message", state="archived")
    response = client.post(url, {"action": "replay", "_selected_action": failed})

    assert "replay" not in text
    assert response.status_code == 403
    assert queue("orders").metrics().length == 0


@pytest.mark.parametrize(
    ("name", "args", "permission"),
    [
        ("queue_changelist", [], "view_message"),
        ("overview_json", [], "view_message"),
        ("message_changelist", [], "view_queue"),
        ("message_failures", [], "view_queue"),
        ("message_failure", [7], "view_queue"),
        ("process_changelist", [], "view_queue"),
        ("health", [], "view_queue"),
        ("rollup_charts", [], "view_queue"),
    ],
)
def test_a_page_is_closed_to_who_may_not_view_it(staff, name, args, permission):
    url = reverse(f"admin:django_pgqueue_{name}", args=args)

    assert staff(permission).get(url).status_code == 403


def test_only_pages_that_may_be_seen_are_linked(staff):
    text = page(staff("view_queue"), "queue")

    nav = text.partition('class="pgqueue-nav"')[2].partition("</nav>")[0]
    assert nav.count("<li>") == 1


def test_the_way_to_each_page_is_on_each_page(admin_client, orders, settings):
    settings.PGQUEUE = {"ADMIN_SHOWS": ["schedules", "topics"]}
    for name in ("queue_changelist", "message_changelist", "schedule_changelist", "health"):
        text = admin_client.get(reverse(f"admin:django_pgqueue_{name}")).content.decode()
        nav = text.partition('class="pgqueue-nav"')[2].partition("</nav>")[0]
        assert nav.count("<li>") == 9
        assert nav.count('aria-current="page"') == 1


LISTS = sorted(
    model._meta.model_name or ""
    for model in admin.site._registry
    if model._meta.app_label == "django_pgqueue"
)


@pytest.mark.parametrize("name", LISTS)
def test_a_list_is_titled_by_what_it_lists(admin_client, name):
    address = reverse(f"admin:django_pgqueue_{name}_changelist")

    text = admin_client.get(address, follow=True).content.decode()

    [title] = re.findall(r"<title>(.*?)</title>", text, re.DOTALL)
    assert not title.strip().startswith("Select")
