"""Metrics from a running consumer and from the view, with dashboards and alert rules."""

from __future__ import annotations

import datetime as dt
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import RequestFactory
from prometheus_client.parser import text_string_to_metric_families

from django_pgqueue import signals
from django_pgqueue.acks import Discard
from django_pgqueue.models import ArchivedMessage, ExportRun, Lake, Message, Queue, Schedule
from django_pgqueue.prometheus import apps, counters, views
from django_pgqueue.retries import Constant
from django_pgqueue.tables.process import ago
from tests.conftest import run_sql
from tests.waiting import until

FILES = Path(counters.__file__).parent


def samples(text: bytes, **labels: str) -> dict[str, float]:
    """A scrape's values by name, restricted to samples with these labels."""
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if all(sample.labels.get(name) == value for name, value in labels.items())
    }


def test_a_running_consumer_is_scraped(committed, consume, connected, held):
    from django_pgqueue import queue

    queue("measured").create()

    def work(message: Message) -> None:
        if message.body == "retry" and message.attempts == 0:
            raise ValueError("once")
        if message.body == "fail":
            raise ValueError("always")
        if message.body == "discard":
            raise Discard
        if message.body == "cancel":
            queue("measured").cancel(message.id)

    queue("measured").send_batch(["good", "good", "retry", "fail", "discard", "cancel"])
    run = consume(
        work,
        queue="measured",
        retry=Constant(seconds=0, max_attempts=2),
        options={"health_port": 0},
    )
    until(lambda: run.subscription.counts.settled == 8)
    port = run.consumer._health.port

    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        found = samples(answer.read(), queue="measured")

    assert found["pgqueue_completed_total"] == 3
    assert found["pgqueue_retried_total"] == 2
    assert found["pgqueue_failed_total"] == 1
    assert found["pgqueue_discarded_total"] == 1
    assert found["pgqueue_cancelled_total"] == 1
    assert found["pgqueue_fetched_total"] == 8
    assert found["pgqueue_run_seconds_count"] == 8
    assert found["pgqueue_wait_seconds_count"] == 6
    assert found["pgqueue_leases_lost_total"] == 0


def test_messages_that_expired_are_counted(connected):
    signals.messages_expired.send_robust("perishable", ids=[1, 2, 3])

    labels = {"queue": "perishable"}
    assert counters.registry.get_sample_value("pgqueue_expired_total", labels) == 3


def test_the_view_has_metrics_of_queues(orders):
    Queue.objects.filter(name="orders").update(age_limit=dt.timedelta(hours=2))
    orders.send_batch([1, 2, 3])
    orders.send(4, delay=60)
    orders.archive(orders.read())
    orders.read()

    answer = views.metrics(RequestFactory().get("/metrics/queues"))

    text = answer.content
    assert answer["Content-Type"].startswith("text/plain")
    by_state = {
        state: samples(text, queue="orders", state=state)["pgqueue_messages"]
        for state in views.PLACES
    }
    assert by_state == {"ready": 1, "in_flight": 1, "delayed": 1, "waiting": 0}
    found = samples(text, queue="orders")
    # The server's statistics count a transaction after its end.
    assert found["pgqueue_archived_messages"] == 0
    assert found["pgqueue_visible_messages"] == 1
    assert samples(text, queue="orders", reason="scheduled")["pgqueue_blocked_messages"] == 1
    assert found["pgqueue_oldest_message_age_seconds"] >= 0
    assert found["pgqueue_age_limit_seconds"] == 7200
    assert samples(text, database="default")["pgqueue_up"] == 1
    assert views.metrics(RequestFactory().post("/")).status_code == 405


def test_the_view_has_metrics_of_schedules(orders):
    target, hour = Queue.objects.get(), dt.timedelta(hours=1)
    for each in ("good", "late", "paused"):
        Schedule.objects.create(name=each, queue=target, interval=hour, paused=each == "paused")
    past = dt.datetime.now(dt.timezone.utc) - hour
    Schedule.objects.exclude(name="good").update(next_run_at=past, error="no messages on holidays")

    text = views.metrics(RequestFactory().get("/metrics/queues")).content

    found = {each: samples(text, queue="orders", schedule=each) for each in ("good", "late")}
    assert found["good"] == {"pgqueue_schedule_failing": 0, "pgqueue_schedule_late_seconds": 0}
    assert found["late"]["pgqueue_schedule_failing"] == 1
    assert found["late"]["pgqueue_schedule_late_seconds"] >= 3600
    assert samples(text, schedule="paused")["pgqueue_schedule_late_seconds"] == 0


def test_the_view_tells_how_exports_are(orders):
    Queue.objects.filter(name="orders").update(retention=dt.timedelta(hours=1))
    orders.send_batch([1, 2, 3])
    orders.archive(orders.read(qty=3))
    hours = [ago(dt.timedelta(hours=hours)) for hours in (2, 3)]
    ArchivedMessage.objects.update(archived_at=hours[0])
    lake = Lake.objects.create(path="/lake", holds_retention=True)
    Lake.objects.update(exported_at=hours[1])
    ExportRun.objects.create(lake=lake, state="DONE", manifest={"misfits": 3, "typed": 4})
    ExportRun.objects.create(lake=lake, state="FAILED")

    found = samples(views.metrics(RequestFactory().get("/metrics/queues")).content, lake="/lake")

    assert found["pgqueue_export_misfit_ratio"] == 0.75
    assert (found["pgqueue_export_failures"], found["pgqueue_export_lag_messages"]) == (1, 3)
    assert found["pgqueue_export_held_messages"] == 3
    assert found["pgqueue_export_lag_seconds"] == found["pgqueue_export_age_seconds"] >= 10800


def test_a_database_that_takes_too_long_is_reported_as_down(orders, monkeypatch):
    def slow() -> list[Any]:
        run_sql("SELECT pg_sleep(60)")
        return []

    monkeypatch.setattr(Message.objects, "metrics_all", slow)

    [found] = list(views.QueueCollector(seconds=0.05).collect())

    assert (found.name, found.samples[0].value) == ("pgqueue_up", 0)
    assert orders.send(1) > 0


def test_the_time_limit_ends_with_the_scrape(orders, sql):
    before = sql("SHOW statement_timeout")

    views.metrics(RequestFactory().get("/metrics/queues"))

    assert sql("SHOW statement_timeout") == before


def test_the_app_says_what_it_needs(monkeypatch):
    monkeypatch.setattr(apps, "find_spec", lambda name: None)

    with pytest.raises(ImproperlyConfigured, match="needs prometheus-client"):
        apps.PrometheusConfig.create("django_pgqueue.prometheus").ready()


@pytest.fixture
def check_rules(tmp_path: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Check a rule file's text with promtool."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("needs promtool (Debian's prometheus)")

    def check(text: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "rules.yml").write_text(text)
        command = [program, "check", "rules", str(tmp_path / "rules.yml")]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    return check


def test_prometheus_takes_the_alert_rules(check_rules):
    rules = (FILES / "alerts.yml").read_text()

    taken = check_rules(rules)
    refused = check_rules(rules.replace(" > ", " > > ", 1))

    assert (taken.returncode, refused.returncode) == (0, 1), taken.stderr
    assert "9 rules found" in taken.stdout


def asked_by_dashboard() -> list[str]:
    dashboard = json.loads((FILES / "dashboard.json").read_text())
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"]) == 8
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def asked_by_alerts() -> list[str]:
    text = (FILES / "alerts.yml").read_text()
    rules = re.findall(
        r"- alert: \w+\n +expr: (.+)\n +for: \d+m\n +annotations:\n"
        r' +summary: ".+"\n +action: ".+"\n',
        text,
    )
    assert len(rules) == text.count("- alert:") == 9
    return rules


def unanswered(query: str, scraped: list[Any]) -> list[str]:
    """A query's selectors without a matching sample, including the labels it groups by."""
    wanted = {
        label for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(", ")
    }
    missing = []
    for name, matchers in re.findall(r"(pgqueue_\w+)(?:\{([^}]*)\})?", query):
        patterns = dict(re.findall(r'(\w+)=~"([^"]*)"', matchers.replace("$queue", ".*")))
        fitting = [
            sample
            for sample in scraped
            if sample.name == name
            and wanted <= sample.labels.keys()
            and all(re.fullmatch(p, sample.labels.get(label, "")) for label, p in patterns.items())
        ]
        if not fitting or (name.endswith("_bucket") and fitting[-1].labels["le"] != "+Inf"):
            missing.append(name)
    return missing


def test_queries_of_the_dashboard_and_of_alerts_are_answered_by_a_scrape(
    committed_orders, consume, connected
):
    committed_orders.send(1)
    Schedule.objects.create(name="often", queue=Queue.objects.get(), interval=dt.timedelta(hours=1))
    Lake.objects.create(path="/lake")
    run = consume(lambda message: None, options={"health_port": 0})
    until(lambda: run.subscription.counts.completed == 1)
    signals.database_failed.send_robust(None, operation="fetch", error=OSError(), wait=1.0)
    with urlopen(f"http://127.0.0.1:{run.consumer._health.port}/metrics", timeout=10) as answer:
        own = answer.read()
    view = views.metrics(RequestFactory().get("/metrics/queues")).content
    scraped = [
        sample
        for family in text_string_to_metric_families((own + view).decode())
        for sample in family.samples
    ]

    asked = [*asked_by_dashboard(), *asked_by_alerts()]

    assert [(query, missing) for query in asked if (missing := unanswered(query, scraped))] == []
    assert unanswered("sum by (pod) (pgqueue_up)", scraped) == ["pgqueue_up"]
    assert unanswered('pgqueue_gone{queue=~"$queue"}', scraped) == ["pgqueue_gone"]
