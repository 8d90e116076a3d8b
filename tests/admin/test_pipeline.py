"""The admin's pages of what the pipeline's jobs wrote."""

from __future__ import annotations

import datetime as dt

import pytest
from django.test import Client
from django.urls import reverse

from django_pgqueue.models import ExportRun, Lake, PurgeMark, Queue, Rollup, RollupRun
from django_pgqueue.models.bound import BoundQueue

NOW = dt.datetime(2026, 11, 21, 12, tzinfo=dt.timezone.utc)


@pytest.mark.parametrize("model", [Lake, ExportRun, Rollup, RollupRun])
def test_list_and_page_show_what_a_job_wrote(admin_client: Client, model: type) -> None:
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


@pytest.mark.parametrize("text", ["null", "", "[]"])
def test_lake_without_names_takes_all_queues(admin_client: Client, text: str) -> None:
    lake = Lake.objects.create(path="/lake", queues=["orders"])
    url = reverse("admin:django_pgqueue_lake_change", args=[lake.pk])

    assert admin_client.post(url, {"queues": text}).status_code == 302

    assert Lake.objects.get().queues == []


@pytest.mark.parametrize("text", ["7", "{}", "[1]", "[null]"])
def test_lake_takes_names_only(admin_client: Client, text: str) -> None:
    lake = Lake.objects.create(path="/lake", queues=["orders"])
    url = reverse("admin:django_pgqueue_lake_change", args=[lake.pk])

    response = admin_client.post(url, {"queues": text})

    assert "Write a list of names" in response.content.decode()
    assert Lake.objects.get().queues == ["orders"]


def test_lake_holds_back_the_retention_of_the_queues_it_takes(orders: BoundQueue) -> None:
    found = Queue.objects.resolve("orders")
    Lake.objects.create(path="/slow", holds_retention=True, exported_below=10, queues=["Orders"])
    Lake.objects.create(path="/fast", holds_retention=True, exported_below=20)
    Lake.objects.create(path="/free", holds_retention=False, exported_below=0)
    Lake.objects.create(path="/other", holds_retention=True, exported_below=1, queues=["mails"])

    assert Lake.objects.exported_below(found) == 10


def test_nothing_holds_back_retention_where_no_lake_asks_for_it(orders: BoundQueue) -> None:
    Lake.objects.create(path="/free", exported_below=5)

    assert Lake.objects.exported_below(Queue.objects.resolve("orders")) is None


def test_purge_mark_rises_and_never_falls(orders: BoundQueue) -> None:
    PurgeMark.objects.raise_to(Queue.objects.resolve("orders"), 7)
    PurgeMark.objects.raise_to(Queue.objects.resolve("orders"), 5)

    assert PurgeMark.objects.get(queue=Queue.objects.resolve("orders")).below_xid == 7
