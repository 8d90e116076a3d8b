"""Batches in the admin: their list, the page of one, and where other pages show them."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.timezone import now

from django_pgqueue import queue
from django_pgqueue.models import AuditEntry, Batch, BoundQueue, Message, Queue
from tests.admin.conftest import (
    MOST,
    OF_PERMISSIONS,
    act,
    alerts,
    answer,
    confirm,
    page,
    plain,
    queries,
    shown,
)


@pytest.fixture
def mails(orders: BoundQueue) -> BoundQueue:
    queue("reports").create()
    return queue("mails").create() and queue("mails")


@pytest.fixture
def viewer(staff: Callable[..., Client]) -> Client:
    return staff("view_batch", "change_batch", "view_message", "view_queue", "acknowledge_alert")


def begun(of: BoundQueue, members: int = 3, name: str = "", then: Any = None) -> Batch:
    """A batch with members, whose callback is sent to ``reports`` unless another is given."""
    with of.batch(name=name, then=then or queue("reports").message({"report": 1})) as batch:
        if members:
            batch.send_batch([*range(members)])
    return batch


def count(*batches: Batch) -> None:
    Batch.objects.count_members([each.pk for each in batches], using="default")


def failing(of: BoundQueue) -> Batch:
    """A batch whose members have ended, and whose callback's queue was dropped."""
    queue("albums").create()
    batch = begun(of, 1, then=queue("albums").message({"album": 7}))
    queue("albums").drop()
    of.archive(of.read())
    count(batch)
    return batch


def abandoned(of: BoundQueue) -> Batch:
    batch = of.open_batch(name="album", open_for=60)
    batch.send(1)
    Batch.objects.filter(pk=batch.pk).update(open_until=now() - dt.timedelta(seconds=1))
    Batch.objects.due(using="default")
    return batch


def listed(client: Client, **query: Any) -> list[dict[str, str]]:
    """The rows of the list of batches, each with its cells by label."""
    return rows_of(page(client, "batch", **query))


def rows_of(text: str) -> list[dict[str, str]]:
    body = text.partition('<table class="rows batches">')[2].partition("</tbody>")[0]
    found = []
    for row in re.findall(r"<tr>\n.*?</tr>", body.partition("<tbody>")[2], re.DOTALL):
        cells = re.findall(r'data-label="([^"]+)"[^>]*>(.*?)</td>', row, re.DOTALL)
        name = plain(row.partition("</th>")[0])
        found.append({"batch": name, **{label: plain(cell) for label, cell in cells}})
    return found


def facts(text: str) -> dict[str, str]:
    """The table of a batch's page."""
    pairs = re.findall(r'<tr><th scope="row">(.*?)</th><td>(.*?)</td></tr>', text, re.DOTALL)
    return {plain(name): plain(value) for name, value in pairs}


def figures(text: str) -> dict[str, str]:
    """The counts of a batch's page, except zeros."""
    pairs = re.findall(r'<dd class="figure[^>]*>(.*?)</dd><dt class="label">(.*?)</dt>', text)
    return {plain(name): number for number, name in pairs if number != "0"}


def test_batches_are_listed_the_newest_first_with_how_far_they_are(viewer, mails):
    first, second = begun(mails, 4, "news"), begun(queue("orders"), 1)
    mails.archive(mails.read(qty=1))
    queue("orders").archive(queue("orders").read())
    count(first, second)

    done, running = listed(viewer)

    assert (done["batch"], done["state"], done["ended"]) == (str(second.pk), "done", "1 of 1")
    assert running.pop("took").endswith(" s")
    assert running.pop("started at")
    assert running == {
        "batch": f"{first.pk}: news",
        "queue": "mails",
        "state": "running",
        "progress": "25 %",
        "ended": "1 of 4",
    }


def test_the_list_is_filtered_by_queue_and_by_state(viewer, mails):
    running, done = begun(mails), begun(mails, 0)
    other = begun(queue("orders"))
    pk = Queue.objects.get(name="mails").pk

    def ids(**query: Any) -> list[int]:
        return [int(row["batch"]) for row in listed(viewer, **query)]

    assert ids() == [other.pk, done.pk, running.pk]
    assert ids(queue=pk) == [done.pk, running.pk]
    assert ids(state="open") == [other.pk, running.pk]
    assert ids(state="done", queue=pk) == [done.pk]
    assert ids(queue="nonsense") == []
    text = page(viewer, "batch", queue=pk, state="done")
    assert f'<option value="{pk}" selected>mails</option>' in text
    assert f'href="?state=open&amp;queue={pk}"' in text


def test_the_list_goes_on_by_id_without_a_count(viewer, mails, monkeypatch):
    monkeypatch.setattr("django_pgqueue.admin.batches.BatchAdmin.list_per_page", 2)
    batches = [begun(mails, 1) for _ in range(3)]

    with CaptureQueriesContext(connection) as asked:
        text = page(viewer, "batch", state="open")
    following = f"?state=open&amp;before={batches[1].pk}"
    rest = listed(viewer, state="open", before=batches[1].pk)

    assert f'<a href="{following}">Next page</a>' in text
    assert [row["batch"] for row in rest] == [str(batches[0].pk)]
    assert "Next page" not in page(viewer, "batch", before=batches[1].pk)
    assert not [each for each in asked if "COUNT(" in each["sql"] and "batch" in each["sql"]]


def test_the_page_of_a_batch_has_its_counts_and_its_callback(viewer, mails):
    batch = begun(mails, 5, "news <b>")
    one, two, *_rest = mails.read(qty=3)
    mails.archive(one)
    two.reject("no such user")
    count(batch)

    before = page(viewer, "batch", "change", batch.pk)
    mails.archive([message.id for message in Message.objects.filter(queue__name="mails")])
    batch.refresh_from_db()
    batch.cancel()
    after = page(viewer, "batch", "change", batch.pk)

    assert f"<h1>Batch {batch.pk}: news &lt;b&gt;</h1>" in before
    assert "Running: 2 of 5 messages have ended, in" in plain(before)
    assert figures(before) == {"completed": "1", "failed": "1", "not ended": "3"}
    assert facts(before)["Callback"] == "is sent to reports when all members have ended"
    assert facts(before)["Members"] == "5"
    assert "A redrive or a replay of a member that was counted changes nothing here." in before
    [sent] = Message.objects.filter(queue__name="reports")
    assert facts(after)["Callback"] == f"message {sent.pk} in reports"
    link = reverse("admin:django_pgqueue_message_change", args=[sent.pk])
    assert f'href="{link}?queue={sent.queue_id}"' in after
    assert {"Sealed at", "Cancelled at", "Done at"} <= facts(after).keys()


def test_the_page_of_an_open_batch_says_until_when_it_takes_members(viewer, mails):
    batch = mails.open_batch()

    told = facts(page(viewer, "batch", "change", batch.pk))

    assert "Takes members until" in told
    assert "Sealed at" not in told
    assert told["Callback"] == "none"
    assert [row["state"] for row in listed(viewer)] == ["takes members"]


def test_a_callback_that_cannot_be_sent_is_shown_everywhere(viewer, mails):
    batch = failing(mails)

    told = facts(page(viewer, "batch", "change", batch.pk))["Callback"]

    assert told.startswith("could not be sent to albums, and is tried again : ")
    assert "'albums'" in told
    [row] = listed(viewer)
    assert row["state"].startswith("● callback failing There is no queue 'albums'")
    pk = Queue.objects.get(name="mails").pk
    [alert] = alerts(viewer)
    assert alert.startswith(
        "● Callback failing mails 1 batch whose callback cannot be sent, and is tried again: "
        "There is no queue 'albums'"
    )
    assert f'/batch/?queue={pk}">batches</a>' in page(viewer, "queue")
    assert "Callback failing" in page(viewer, "queue", "overview", pk)


def test_an_abandoned_batch_is_an_alert_for_a_day(viewer, mails):
    batch = abandoned(mails)

    assert alerts(viewer) == [
        "● No consumer mails 1 message to read, the oldest readable for 0 s",
        "▲ Batch abandoned mails 1 batch abandoned in the last day: members may be missing",
    ]
    assert "members may be missing" in page(viewer, "batch", "change", batch.pk)
    assert [row["state"] for row in listed(viewer)] == ["▲ abandoned"]

    Batch.objects.update(sealed_at=now() - dt.timedelta(days=1, seconds=1))

    assert [alert for alert in alerts(viewer) if "abandoned" in alert] == []


def test_a_cancelled_batch_is_no_problem(viewer, mails):
    abandoned(mails).cancel()

    assert alerts(viewer) == []


def test_an_acknowledged_alert_comes_back_with_the_next_batch(viewer, mails):
    def press() -> None:
        text = page(viewer, "queue")
        alert = re.findall(r"abandoned.*?name=\"alert\" value=\"([^\"]+)\"", text, re.DOTALL)[0]
        url = reverse("admin:django_pgqueue_queue_acknowledge")
        assert viewer.post(url, {"alert": alert}).status_code == 302

    def acknowledged() -> bool:
        before, _, after = page(viewer, "queue").partition('id="pgqueue-acknowledged"')
        assert ("Batch abandoned" in before) != ("Batch abandoned" in after)
        return "Batch abandoned" in after

    abandoned(mails)
    press()
    first = acknowledged()
    Batch.objects.update(sealed_at=now() + dt.timedelta(seconds=1))

    assert (first, acknowledged()) == (True, False)


def test_a_batch_is_cancelled_after_a_question(viewer, mails):
    batch = begun(mails, 3)
    mails.archive(mails.read(qty=1))
    count(batch)
    url = reverse("admin:django_pgqueue_batch_cancel", args=[batch.pk])
    assert f'href="{url}"' in page(viewer, "batch", "change", batch.pk)

    asked = viewer.get(url).content.decode()
    viewer.post(url)  # a question not answered
    before = Batch.objects.get()
    text = confirm(viewer, url, asked)

    assert f"Cancel batch {batch.pk} of mails, with 2 messages that have not ended?" in asked
    assert before.cancelled_at is None
    assert f"Cancelled batch {batch.pk}." in text
    assert figures(text) == {"completed": "1", "cancelled": "2"}
    assert url not in text
    entry = AuditEntry.objects.get(operation="cancel")
    assert (entry.who, entry.place, entry.arguments) == ("ann", "admin", {"batch": batch.pk})

    again = viewer.post(url, answer(asked), follow=True).content.decode()

    assert "The batch is done: there was nothing to cancel." in again


def test_the_audit_log_leads_to_a_cancelled_batch(admin_client, mails):
    batch = begun(mails)
    batch.cancel()

    text = page(admin_client, "auditentry")

    url = reverse("admin:django_pgqueue_batch_change", args=[batch.pk])
    assert f'batch: <a href="{url}">{batch.pk}</a>' in text


def test_who_may_only_view_cancels_nothing(staff, mails):
    client, batch = staff("view_batch"), begun(mails)
    url = reverse("admin:django_pgqueue_batch_cancel", args=[batch.pk])

    assert url not in page(client, "batch", "change", batch.pk)
    assert client.get(url).status_code == 403
    assert client.post(url, {"confirmed": "yes"}).status_code == 403
    assert Batch.objects.get().cancelled_at is None


def test_who_may_not_view_batches_sees_none(staff, mails):
    client, batch = staff("view_queue", "view_message"), begun(mails)
    member = Message.objects.filter(queue__name="mails").earliest("pk")

    for name, args in (("changelist", []), ("change", [batch.pk]), ("cancel", [batch.pk])):
        url = reverse(f"admin:django_pgqueue_batch_{name}", args=args)
        assert client.get(url).status_code == 403
    assert "/batch/" not in page(client, "message", "change", member.pk)
    assert "/batch/" not in page(client, "queue", "overview", member.queue_id)


@pytest.mark.parametrize("view", ["add", "delete"])
def test_nobody_makes_or_deletes_a_batch_here(admin_client, mails, view):
    args = [begun(mails).pk] if view == "delete" else []

    url = reverse(f"admin:django_pgqueue_batch_{view}", args=args)

    assert admin_client.get(url).status_code == 403


def test_batches_of_other_queues_are_out_of_sight(viewer, mails, settings):
    theirs = begun(mails)
    for name in ("ann.orders", "bob.reports"):
        queue(name).create()
    ours = begun(queue("ann.orders"), 1, then=queue("bob.reports").message(1))
    queue("ann.orders").archive(queue("ann.orders").read())
    queue("bob.reports").drop()
    count(ours)
    failed = Batch.objects.get(pk=ours.pk)
    settings.PGQUEUE = {"QUEUES_FOR": "tests.admin.access.ours"}

    assert "bob.reports" in failed.error
    shown = [
        page(viewer, "batch"),
        page(viewer, "batch", "change", ours.pk),
        page(viewer, "queue"),
        page(viewer, "queue", "overview", ours.queue_id),
    ]
    for text in shown:
        assert not re.search(r"bob\.|mails", text)
    assert "could not be sent to another queue" in plain(shown[1])
    assert "Callback failing" in shown[2]
    for name in ("change", "cancel"):
        url = reverse(f"admin:django_pgqueue_batch_{name}", args=[theirs.pk])
        assert viewer.post(url, {"confirmed": "yes"}).status_code in (403, 404)
        assert viewer.get(url).status_code == 404
    assert Batch.objects.get(pk=theirs.pk).cancelled_at is None


def test_the_page_of_a_queue_leads_to_its_batches_in_progress(viewer, mails):
    pk = Queue.objects.get(name="mails").pk
    begun(queue("orders"))
    before = page(viewer, "queue", "overview", pk)
    batches = [begun(mails, 1000), begun(mails, 500)]
    begun(mails, 0)
    mails.archive(mails.read(qty=3))
    count(*batches)

    text = page(viewer, "queue", "overview", pk)

    url = reverse("admin:django_pgqueue_batch_changelist", query={"queue": pk, "state": "open"})
    link = f'<a href="{url.replace("&", "&amp;")}">'
    assert f"{link}2 batches in progress, 3 of 1,500 messages ended</a>" in text
    assert "in progress" not in before


def test_the_page_of_a_queue_asks_as_often_for_many_batches(viewer, mails):
    pk = Queue.objects.get(name="mails").pk

    def asked() -> int:
        with CaptureQueriesContext(connection) as each:
            page(viewer, "queue", "overview", pk)
        return queries(each)

    begun(mails, 1)
    few = asked()
    for _ in range(20):
        begun(mails, 50)

    assert asked() == few <= MOST + OF_PERMISSIONS


def test_a_member_and_a_callback_lead_to_their_batch(viewer, mails):
    batch = begun(mails, 1, "news")
    [member] = mails.read()
    mails.archive(member)
    count(batch)
    callback = Message.objects.get(queue__name="reports")

    for pk in (member.id, callback.pk):
        assert shown(viewer, pk).facts["batch"] == f"{batch.pk}: news"
        url = reverse("admin:django_pgqueue_batch_change", args=[batch.pk])
        assert f'href="{url}"' in page(viewer, "message", "change", pk)


@pytest.mark.parametrize("header", [None, {}, {"x-batch": 10**9}, {"x-batch": ["7"]}])
def test_a_message_without_a_batch_leads_nowhere(viewer, mails, header):
    pk = mails.send(1, headers=header)

    assert "batch" not in shown(viewer, pk).facts


def test_the_members_of_a_batch_are_found_in_the_list_of_messages(viewer, mails):
    begun(mails, 2)
    batch = begun(mails, 3)
    mails.send("other")
    text = page(viewer, "batch", "change", batch.pk)
    [url] = re.findall(r'href="([^"]*/message/\?[^"]+)">Messages</a>', text)

    found = viewer.get(url.replace("&amp;", "&")).content.decode()

    assert "3 messages" in found


def test_a_cancel_of_a_message_is_counted(staff, mails):
    client = staff("view_batch", "view_message", "settle_message")
    batch = begun(mails, 1)
    act(client, "message", "cancel", Message.objects.get(queue__name="mails").pk)
    count(batch)

    assert figures(page(client, "batch", "change", batch.pk)) == {"cancelled": "1"}


def test_the_address_of_a_batch_that_is_no_number_leads_to_the_list(viewer, mails):
    url = reverse("admin:django_pgqueue_batch_change", args=["nonsense"])

    response = viewer.get(url)

    assert response.status_code == 302
    assert response["Location"] == reverse("admin:django_pgqueue_batch_changelist")
