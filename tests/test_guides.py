"""The pages on tasks, schedules, tests, results and observation run as written.

The blocks of a page share their names, as in one module of a project. What a page says of them is
then tried.
"""

from __future__ import annotations

import re
import sys
import unittest
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import django
import pytest
from django.apps import AppConfig
from django.test import Client, TestCase
from prometheus_client.parser import text_string_to_metric_families

from django_pgqueue import consumer, queue, schedules, signals
from django_pgqueue.conf import problem
from django_pgqueue.management import diagnosis
from django_pgqueue.models import BoundQueue, Message, Schedule
from django_pgqueue.testing import assert_enqueued, drain, eager, travel
from tests.test_docs import ROOT, blocks, run

Play = Callable[[str], dict[str, Any]]


@pytest.fixture
def play(db: None, own_handlers: None, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Run the Python of a page; its names, and the settings that it gives."""
    module = ModuleType("guide")
    monkeypatch.setitem(sys.modules, "guide", module)
    monkeypatch.setattr(schedules, "_declared", {})

    def play(page: str) -> dict[str, Any]:
        names = vars(module)
        names["settings"] = []
        for block in blocks(ROOT / "docs" / page):
            run(block, names)
            for name in ("TASKS", "PGQUEUE", "INSTALLED_APPS"):
                if name in names:
                    names["settings"].append(names.pop(name))
        return names

    return play


needs_tasks = pytest.mark.skipif(django.VERSION < (6, 1), reason="needs tasks with options")
TASKS = {"default": {"BACKEND": "django_pgqueue.tasks.PgQueueBackend", "QUEUES": []}}


@needs_tasks
def test_tasks(play: Play, settings: Any) -> None:
    from django.tasks import TaskResultStatus, default_task_backend, task_backends

    from django_pgqueue.tasks import running

    settings.TASKS = TASKS
    names = play("tasks.md")
    for each in names["settings"]:
        settings.TASKS = each
        assert task_backends["default"].check() == []
    settings.TASKS = names["settings"][0]
    names["charge"] = names["charge"].using(queue_name="default")
    for name in ("default", "emails"):
        queue(name).create()
    running.register()

    [one, _two] = names["welcome"]([7, 8])
    imported = names["import_orders"].enqueue("https://example.org")
    first = names["charge"].using(priority=10, group="vip").enqueue(7, 8)
    again = names["charge"].enqueue(7, order_id=8)
    drain("emails")
    drain("default")

    assert names["status"](one.id) == (TaskResultStatus.SUCCESSFUL, 1, [])
    assert default_task_backend.get_result(imported.id).return_value == {
        "attempt": 1,
        "id": imported.id,
    }
    assert again.id == first.id


@needs_tasks
def test_schedules(play: Play, settings: Any) -> None:
    settings.TASKS = TASKS
    queue("default").create()
    queue("reports").create()
    names = play("schedules.md")

    hourly = names["hourly"]()
    assert schedules.synchronize(["default"]) == 2
    travel(86_400)

    assert_enqueued("reports", body={"report": "stock"}, count=1)
    [sales] = assert_enqueued("reports", body={"report": "sales"}, count=1)
    assert_enqueued(names["remove_drafts"], kwargs={"older_than": 30}, count=1)
    at = Schedule.objects.get(name="guide.report").last_run_at
    assert names["tick_of"](sales) == at.isoformat()
    hourly.refresh_from_db()
    assert hourly.last_run_at is not None


def make_queue(name: str) -> BoundQueue:
    Message.objects.create_queue(name)
    return queue(name)


@pytest.mark.django_db(transaction=True)
def test_testing(committed: None, play: Play) -> None:
    mailbox: list[Any] = []

    def place_order(number: int) -> None:
        queue("orders").send({"order": number})
        queue("reminders").send({"order": number}, delay=3600)

    given = {
        "place_order": place_order,
        "mailbox": mailbox,
        "make_queue": make_queue,
        "drain": drain,
        "db": None,
    }
    names = play("testing.md")
    ran = 0
    for name, thing in list(names.items()):
        if isinstance(thing, type) and issubclass(thing, TestCase) and thing is not TestCase:
            result = unittest.TestResult()
            unittest.defaultTestLoader.loadTestsFromTestCase(thing).run(result)
            assert [text for _, text in [*result.failures, *result.errors]] == []
            ran += result.testsRun
        elif name.startswith("test_"):
            for each in ("orders", "reminders"):
                make_queue(each).purge()
            if "mailbox" in thing.__code__.co_varnames:
                consumer("orders")(lambda message: mailbox.append(message.body))
            thing(
                *(given[each] for each in thing.__code__.co_varnames[: thing.__code__.co_argcount])
            )
            ran += 1

    assert ran == 8


def test_results(
    play: Play, orders: BoundQueue, pgqueue: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    names = play("results.md")
    [own] = names["settings"]
    pgqueue(**own)
    assert problem("MASK") is None

    with eager():
        assert names["place"](SimpleNamespace(total=3)) == {"charged": 3}
    pk = orders.send({"sum": 3})
    drain("orders", policies=True)
    names["explain"](pk)

    said = capsys.readouterr().out
    assert said.count("KeyError: 'total'") == 10
    assert said.startswith("1 ")


def test_cancel(play: Play, orders: BoundQueue, capsys: pytest.CaptureFixture[str]) -> None:
    names = play("cancel.md")
    queue("imports").create()

    pk = orders.send(1)
    assert names["call_off"]([pk, 10**12]) == ([pk], [10**12])
    queue("imports").send({"rows": ["a", "b"]})
    drain("imports")

    assert capsys.readouterr().out == "a\nb\n"
    assert orders.replay(state="CANCELLED") == 1


def test_prometheus(
    play: Play, orders: BoundQueue, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django_pgqueue.prometheus import process

    names = play("prometheus.md")
    apps = [app for each in names["settings"] for app in each]
    settings.ROOT_URLCONF = "guide"

    answer = Client().get("/metrics/queues")

    assert [AppConfig.create(app).name for app in apps] == apps
    scraped = answer.content + process.page()[1]
    found = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in text_string_to_metric_families(scraped.decode())
    }
    page = (ROOT / "docs" / "prometheus.md").read_text()
    told = {
        name for row in re.findall(r"^\| (`pgqueue_.*?) \|", page, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }  # fmt: skip
    assert told == found


def test_tracing(play: Play, orders: BoundQueue) -> None:
    names = play("tracing.md")
    try:
        orders.send(1)
        orders.send(2, headers={"tenant": "other"})
    finally:
        signals.messages_sending.disconnect(names["add_tenant"])

    told = [message.headers for message in Message.objects.order_by("pk")]
    assert told == [{"tenant": "acme"}, {"tenant": "other"}]
    apps = [app for each in names["settings"] for app in each]
    assert [AppConfig.create(app).name for app in apps] == apps


def test_doctor(orders: BoundQueue) -> None:
    page = (ROOT / "docs" / "doctor.md").read_text()
    shown = re.findall(r"^(?:ok  |FAIL) ([a-z ]+): (.+)$", page, re.MULTILINE)
    table = re.findall(r"^\| `([a-z ]+)` \|", page, re.MULTILINE)

    assert [check for check, _ in shown] == table == list(diagnosis.CHECKS)
    [found] = diagnosis.CHECKS["objects"]("default", diagnosis.Limits())
    assert dict(shown)["objects"] == found.text
