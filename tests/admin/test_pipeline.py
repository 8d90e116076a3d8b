"""The admin's pages about the Spark pipeline's jobs."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import pytest
from django.db.models import F
from django.urls import reverse

from django_pgqueue.admin import exports
from django_pgqueue.models import ArchivedMessage, ExportRun, Lake, Queue, Rollup, RollupRun
from tests.actors import Actor, execute

NOW = dt.datetime(2026, 11, 21, 12, tzinfo=dt.timezone.utc)


@pytest.mark.parametrize("model", [Lake, ExportRun, Rollup, RollupRun])
def test_list_and_page_show_what_a_job_wrote(admin_client, model):
    lake = Lake.objects.create(path="/lake")
    run = ExportRun.objects.create(lake=lake, rows=7, bytes=2048)
    rollup = Rollup.objects.create(queue_name="orders", seconds=3600, bucket=NOW)
    computed = RollupRun.objects.create(
        seconds=3600, from_at=NOW, to_at=NOW, below_xid=1, buckets=1, started_at=NOW
    )
    written = {Lake: lake, ExportRun: run, Rollup: rollup, RollupRun: computed}[model]
    name = f"admin:django_pgqueue_{model.__name__.lower()}"

    listed = admin_client.get(reverse(f"{name}_changelist"))
    page = admin_client.get(reverse(f"{name}_change", args=[written.pk]))

    assert listed.status_code == page.status_code == 200
    assert listed.context["cl"].result_count == 1


def exporting(actor: Actor, path: str) -> None:
    """Hold a lake's lock, as a session that exports to it."""
    lock = "SELECT pg_advisory_lock(hashtext('pgqueue export'), hashtext(%s))"
    actor.do(execute, lock, [path])


BARE = 'Traceback (most recent call last):\n  File "x.py", line 7, in f\n'


@pytest.mark.parametrize(
    ("state", "error", "resumed", "told"),
    [
        ("DONE", "", False, "done"),
        ("RUNNING", "", False, "failed: the process ended unexpectedly"),
        ("FAILED", "no space\nTraceback: …", False, "failed: no space"),
        ("FAILED", f"{BARE}OSError: no space\n", False, "failed: OSError: no space"),
        ("FAILED", "no space", True, "failed, resumed by run"),
    ],
)
def test_run_says_whether_it_runs_or_failed_and_why(admin_client, state, error, resumed, told):
    lake = Lake.objects.create(path="/lake")
    run = ExportRun.objects.create(lake=lake, state=state, error=error)
    if resumed:
        run.resumed_by = ExportRun.objects.create(lake=lake, state="DONE")
        run.save()

    page = admin_client.get(reverse("admin:django_pgqueue_exportrun_changelist"))

    cells = re.findall(r'<td class="field-standing"[^>]*>(.*?)</td>', page.content.decode())
    assert cells[-1].startswith(told)


def test_run_is_running_while_its_session_lives(admin_client, committed, actor):
    lake = Lake.objects.create(path="/lake/that/runs")
    ExportRun.objects.create(lake=lake)
    exporting(actor, lake.path)

    for model in ("exportrun", "lake"):
        page = admin_client.get(reverse(f"admin:django_pgqueue_{model}_changelist"))
        assert ">running<" in page.content.decode()
    actor.do(execute, "SELECT pg_advisory_unlock_all()")


def failing_lake(**values: Any) -> Lake:
    """A lake whose last good run is two days old, and which then failed."""
    exported_at = dt.datetime.now(dt.timezone.utc) - dt.timedelta(days=2)
    lake = Lake.objects.create(path="/lake", exported_at=exported_at, **values)
    ExportRun.objects.create(lake=lake, state="DONE")
    ExportRun.objects.create(lake=lake, state="FAILED", error=f"{BARE}OSError: no space\n")
    return lake


@pytest.mark.parametrize("late", [True, False])
def test_overview_names_a_lake_whose_exports_fail_or_are_late_and_what_it_holds_back(
    admin_client, orders, late
):
    lake = failing_lake(holds_retention=True)
    if late:
        ExportRun.objects.filter(state="FAILED").delete()
    Queue.objects.filter(name="orders").update(retention=dt.timedelta(days=1))
    orders.send_batch([1, 2, 3])
    orders.archive(orders.read(qty=3))
    ArchivedMessage.objects.update(archived_at=F("archived_at") - dt.timedelta(days=2))

    page = admin_client.get(reverse("admin:django_pgqueue_queue_changelist")).content.decode()

    problem = "2 d behind" if late else "no space"
    assert ("Exports late" if late else "Exports failing") in page
    assert f"{problem}; retention keeps 3 messages until they are exported" in page
    assert reverse("admin:django_pgqueue_exportrun_changelist") in page
    for name, args in (("changelist", []), ("change", [lake.pk])):
        url = reverse(f"admin:django_pgqueue_lake_{name}", args=args)
        assert ("failed: OSError: no space" in admin_client.get(url).content.decode()) is not late


def test_lake_that_has_everything_is_no_alert(admin_client, orders):
    failing_lake()
    ExportRun.objects.filter(state="FAILED").delete()

    page = admin_client.get(reverse("admin:django_pgqueue_queue_changelist"))

    assert page.context["attention"] == []


@pytest.mark.parametrize("text", ["null", "", "[]"])
def test_lake_without_names_takes_all_queues(admin_client, text):
    lake = Lake.objects.create(path="/lake", queues=["orders"])
    url = reverse("admin:django_pgqueue_lake_change", args=[lake.pk])

    assert admin_client.post(url, {"queues": text}).status_code == 302

    assert Lake.objects.get().queues == []


@pytest.mark.parametrize("text", ["7", "{}", "[1]", "[null]"])
def test_lake_takes_names_only(admin_client, text):
    lake = Lake.objects.create(path="/lake", queues=["orders"])
    url = reverse("admin:django_pgqueue_lake_change", args=[lake.pk])

    response = admin_client.post(url, {"queues": text})

    assert "Enter a list of queue names" in response.content.decode()
    assert Lake.objects.get().queues == ["orders"]


@pytest.mark.parametrize(
    ("queues", "seen", "visible"),
    [
        (["Orders"], {"orders", "mails"}, True),
        (["orders", "bills"], {"orders"}, False),
        ([], {"orders"}, False),
        ([], None, True),
    ],
)
def test_a_lake_is_seen_by_who_may_see_all_of_its_queues(queues, seen, visible):
    assert exports.may_see(queues, seen) is visible
