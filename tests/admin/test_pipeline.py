"""The admin's pages about the Spark pipeline's jobs."""

from __future__ import annotations

import datetime as dt

import pytest
from django.test import Client
from django.urls import reverse

from django_pgqueue.models import ExportRun, Lake, Rollup, RollupRun

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
