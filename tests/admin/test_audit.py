"""The audit log in the admin: who did what, a click from the queue's page."""

from __future__ import annotations

import re

from django.contrib.auth.models import Permission, User
from django.urls import reverse
from django.utils.timezone import now

from django_pgqueue import queue
from django_pgqueue.audit import acting_as
from django_pgqueue.models import AuditEntry, Message, Queue, Schedule
from tests.admin.conftest import act, page, plain
from tests.management.calling import call

LIST = reverse("admin:django_pgqueue_auditentry_changelist")


def rows(text: str) -> list[list[str]]:
    """The cells of the list."""
    body = text.partition("<tbody>")[2].partition("</tbody>")[0]
    cells = re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
    return [[plain(c) for c in re.findall(r"<td.*?>(.*?)</td>", row, re.DOTALL)] for row in cells]


def test_who_purged_is_a_click_away_from_the_queues_page(admin_client, orders):
    queue("mails").create()
    orders.send_batch([1, 2, 3])
    with acting_as("deploy 42"):
        orders.alter(limit=5)
    [first, *_] = [message.pk for message in orders.peek(qty=3)]
    act(admin_client, "message", "cancel", first)
    call("pgqueue_purge", "orders", "--yes")

    text = page(admin_client, "queue", "overview", Queue.objects.get(name="orders").pk)
    [link] = re.findall(rf'href="({LIST}\?queue=\d+)"', text)
    purged, cancelled, altered, made = rows(admin_client.get(link).content.decode())

    assert purged[2:5] == ["Purge", "orders", "2"]
    assert purged[6].startswith("command, pgqueue_purge, ")
    assert cancelled[1:6] == ["admin", "Cancel", "orders", "1", f"messages: {first}"]
    assert altered[1:6] == ["deploy 42", "Change", "orders", "-", "limit: - → 5"]
    assert made[2] == "Create"
    assert len(rows(admin_client.get(LIST).content.decode())) == 5
    found = admin_client.get(LIST, {"operation": "purge"}).content.decode()
    assert [row[2] for row in rows(found)] == ["Purge"]


def test_what_was_created_is_told_without_its_empty_settings(admin_client, orders):
    Schedule.objects.create(name="nightly", queue=Queue.objects.get(), cron="0 4 * * *")

    [made, *_] = rows(admin_client.get(LIST).content.decode())

    assert "cron: 0 4 * * *" in made[5]
    assert not re.search(r": ?(,|$)", made[5])


def test_the_log_needs_a_permission_and_shows_the_users_queues(staff, settings):
    settings.PGQUEUE = {"QUEUES_FOR": "tests.admin.access.ours"}
    for name in ("ann.orders", "bob.secret"):
        Message.objects.create_queue(name)
    pk = Queue.objects.get(name="ann.orders").pk
    client = staff("view_queue")
    assert client.get(LIST).status_code == 403
    assert LIST not in page(client, "queue", "overview", pk)

    User.objects.get().user_permissions.add(Permission.objects.get(codename="view_auditentry"))
    text = client.get(LIST).content.decode()

    assert [row[3] for row in rows(text)] == ["ann.orders"]
    assert "bob.secret" not in text


def test_the_history_of_an_object_leads_to_the_log(admin_client, orders):
    pk = Queue.objects.get().pk
    answer = admin_client.get(reverse("admin:django_pgqueue_queue_history", args=[pk]))

    assert answer["Location"] == f"{LIST}?queue={pk}"


def test_the_count_of_a_large_queue_that_was_dropped_is_marked_as_an_estimate(admin_client, db):
    AuditEntry.objects.create(
        operation="drop", count=12_000, ended_at=now(), arguments={"estimate": True}
    )

    [row] = rows(admin_client.get(LIST).content.decode())

    assert (row[4], row[5]) == ("≈ 12,000", "-")
