"""The guides on tasks, schedules, tests, workflows, poolers, triage and observation run as written.

The blocks of a page share their names, like one module of a project. The tests then check what the
page says about them.
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
import yaml
from asgiref.sync import async_to_sync
from django.apps import AppConfig
from django.db import connections
from django.test import Client, TestCase
from prometheus_client.parser import text_string_to_metric_families

from django_pgqueue import consumer, queue, retries, signals
from django_pgqueue.checks import check_pools
from django_pgqueue.conf import problem
from django_pgqueue.embedded import base
from django_pgqueue.handlers import Handler
from django_pgqueue.management import diagnosis
from django_pgqueue.management.commands.runconsumer import Command as RunConsumer
from django_pgqueue.models import ArchivedMessage, BoundQueue, Message, Queue, Schedule
from django_pgqueue.retries import NoRetry
from django_pgqueue.testing import assert_enqueued, drain, eager, travel
from django_pgqueue.worker import ticker
from django_pgqueue.worker.listener import can_listen
from tests.acceptance.test_transactions import pooled
from tests.actors import Actor, call
from tests.admin.conftest import operator, page, staff
from tests.app.models import Order
from tests.test_docs import ROOT, blocks, run

__all__ = ["operator", "staff"]

Play = Callable[..., dict[str, Any]]


def section(page: str, title: str) -> str:
    """The text of a page's section."""
    _, heading, text = (ROOT / "docs" / page).read_text().partition(f"\n## {title}\n")
    assert heading, title
    return text.partition("\n## ")[0]


@pytest.fixture
def play(db: None, own_handlers: None, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Run the Python of a page or its section; returns its names and the settings it shows."""
    module = ModuleType("guide")
    monkeypatch.setitem(sys.modules, "guide", module)

    def play(page: str, title: str | None = None) -> dict[str, Any]:
        names = vars(module)
        names["settings"] = []
        for block in blocks(ROOT / "docs" / page):
            if title and block.text not in section(page, title):
                continue
            if block.text.startswith("# shop/models.py"):  # tests/app has the model
                continue
            run(block, names)
            for name in ("TASKS", "PGQUEUE", "INSTALLED_APPS", "DATABASES"):
                if name in names:
                    names["settings"].append(names.pop(name))
        return names

    return play


needs_tasks = pytest.mark.skipif(django.VERSION < (6, 0), reason="Django's Tasks came with 6.0")
TASKS = {"default": {"BACKEND": "django_pgqueue.tasks.PgQueueBackend", "QUEUES": []}}


@needs_tasks
def test_tasks(play, settings):
    from django.tasks import TaskResultStatus, default_task_backend, task_backends

    from django_pgqueue.tasks import consuming

    settings.TASKS = TASKS
    names = play("tasks.md")
    for each in names["settings"]:
        settings.TASKS = each
        assert task_backends["default"].check() == []
    settings.TASKS = names["settings"][0]
    names["charge"] = names["charge"].using(queue_name="default")
    for name in ("default", "emails"):
        queue(name).create()
    consuming.register()

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
def test_schedules(play, settings):
    settings.TASKS = TASKS
    queue("default").create()
    queue("reports").create()
    names = play("schedules.md")

    hourly = names["hourly"]()
    assert ticker.synchronize("default") == 2
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
def test_testing(committed, play):
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
            # A factory's daily schedule would be due in another test's hours at 2 and 3 o'clock.
            Schedule.objects.all().delete()
            if "mailbox" in thing.__code__.co_varnames:
                consumer("orders")(lambda message: mailbox.append(message.body))
            thing(
                *(given[each] for each in thing.__code__.co_varnames[: thing.__code__.co_argcount])
            )
            ran += 1

    assert ran == 9


def test_results(play, orders, pgqueue, capsys):
    play("results.md", "Results")
    names = play("results.md", "Errors of each attempt")
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


def test_index(play, shop, orders):
    names = play("index.md")

    order = names["place"]("A-7")
    drain("orders")

    order.refresh_from_db()
    assert order.note == "charged"


def test_faq(play, shop, orders):
    for name in ("mails", "audit"):
        make_queue(name)
    names = play("faq.md")
    assert [queue(name).peek()[0].body for name in ("mails", "audit")] == [{"order": 7}] * 2
    assert ArchivedMessage.objects.get(pk=names["reminder"]).state == "CANCELLED"

    orders.send(7)
    orders.read()[0].reject("no such order")
    [archived] = ArchivedMessage.objects.filter(state="FAILED").values_list("pk", flat=True)
    names["retry_failed"](archived)
    assert [message.body for message in orders.peek(qty=5)] == [7]
    orders.purge()

    dead = make_queue("orders.dead")
    Queue.objects.filter(name="orders").update(
        dead_letter_queue=Queue.objects.get(name="orders.dead")
    )
    failed = orders.send({})
    orders.read()[0].reject("no order")
    assert dead.metrics().length == 1
    names["retry_dead"](failed)
    assert [message.id for message in orders.peek()] == [failed]

    assert async_to_sync(names["place"])(None) is None
    assert [message.body for message in orders.peek(qty=5)] == [{}, {"order": 7}]


def test_workflows(play, shop):
    for name in ("charge", "ship", "imports", "imported", "refund"):
        make_queue(name)
    for name in ("rows", "ship"):
        make_queue(f"{name}.dead")
    Message.objects.create_queue("rows", dead_letter_queue="rows.dead")
    play("workflows.md")

    order = Order.objects.create(number="A-7")
    queue("charge").send({"order": order.pk})
    drain("charge")
    drain("ship")
    order.refresh_from_db()
    assert order.note == "shipped"

    queue("imports").send({"rows": ["B-1", "B-2", None]})
    drain("imports")
    assert queue("rows").metrics().ready == 3
    drain("rows", policies=True)
    assert queue("rows.dead").metrics().ready == 1
    [imported] = queue("imported").peek()
    told = imported.headers["x-batch"]
    assert (told["completed"], told["dead_lettered"]) == (2, 1)
    assert list(Order.objects.values_list("number", flat=True)) == ["A-7", "B-1", "B-2"]

    dead = {"x-dead-letter": {"error": "no such street"}}
    queue("ship.dead").send({"order": order.pk}, headers=dead)
    drain("ship.dead")
    order.refresh_from_db()
    assert order.note == "not shipped: no such street"
    assert queue("refund").metrics().ready == 1


@pytest.mark.parametrize(
    "order",
    [
        ("wait_for_payment", "payment_came"),
        ("payment_came", "wait_for_payment"),
        ("payment_came", "handle", "wait_for_payment"),
    ],
)
def test_of_a_payment_and_its_deadline_the_first_is_sent(play, shop, order):
    for name in ("imports", "rows", "paid"):
        make_queue(name)
    names, told = play("workflows.md"), list[bool]()

    def handle(_: int = 0) -> None:
        for message in queue("paid").read(qty=5):
            told.append(message.body["late"])
            message.ack()

    for step in order:
        {**names, "handle": handle}[step](7)
    travel(100_000)
    handle()

    assert told == [False]


def test_retries(play, orders):
    mails = make_queue("mails")
    play("retries.md")

    ids = orders.send_batch([{"card": "unknown"}, {"card": "7"}])
    drain("orders", policies=True)
    ids += mails.send_batch([{"to": ""}, {"to": "ann@example.com"}])
    drain("mails", policies=True)

    ended = [ArchivedMessage.objects.get(pk=pk) for pk in ids]
    assert [(each.state, each.attempts) for each in ended] == [
        ("FAILED", 1),
        ("COMPLETED", 2),
        ("FAILED", 1),
        ("COMPLETED", 3),
    ]
    page = (ROOT / "docs" / "retries.md").read_text()
    [told] = re.findall(r"handler of `@consumer` gets `(.*)`\.", page)
    assert eval(told, vars(retries)) == Handler.retry


def test_docker():
    page = (ROOT / "docs" / "docker.md").read_text()
    compose, kubernetes = map(yaml.safe_load, re.findall(r"```yaml\n(.*?)```", page, re.DOTALL))
    service, spec = compose["services"]["consumer"], kubernetes["spec"]
    [container] = spec["containers"]

    for command, grace in (
        (service["command"].split(), int(service["stop_grace_period"].rstrip("s"))),
        (container["command"] + container["args"], spec["terminationGracePeriodSeconds"]),
    ):
        assert command[:3] == ["python", "manage.py", "runconsumer"]
        parsed = RunConsumer().create_parser("manage.py", "runconsumer").parse_args(command[3:])
        assert grace > parsed.graceful_timeout
        assert parsed.health_port == 8080


def test_cancel(play, orders, capsys):
    names = play("results.md", "Cancel")
    queue("imports").create()

    pk = orders.send(1)
    assert names["call_off"]([pk, 10**12]) == ([pk], [10**12])
    queue("imports").send({"rows": ["a", "b"]})
    drain("imports")

    assert capsys.readouterr().out == "a\nb\n"
    assert orders.replay(state="CANCELLED") == 1


def test_poolers(committed_orders, reachable, play, monkeypatch):
    server = reachable["default"]
    text = section("connections.md", "pgbouncer and other poolers")
    [told] = re.findall(r"^```ini\n.*?^\[pgbouncer\]\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)

    def there(database: dict[str, Any], name: str, **more: Any) -> Actor:
        """A process with the page's settings, and the server's address in its environment."""
        monkeypatch.setenv("DATABASE_HOST", database["HOST"] or server["OPTIONS"].get("host", ""))
        monkeypatch.setenv("DATABASE_PORT", str(database["PORT"] or ""))
        [settings] = play("connections.md", "pgbouncer and other poolers")["settings"]
        known = {key: server[key] for key in ("USER", "PASSWORD")}
        return Actor({"default": {**settings["default"], "NAME": name, **known, **more}})

    with pooled(server, told) as bouncer, there(bouncer, bouncer["NAME"]) as web:
        pk = web.do(call, "send", "orders", {"order": 7})
        assert not web.do(can_listen, "default")
    with there(server, server["NAME"], OPTIONS=server["OPTIONS"]) as direct:
        assert direct.do(can_listen, "default")
        assert [message.id for message in direct.do(call, "read", "orders")] == [pk]


def test_pools(committed_orders, reachable, play, monkeypatch):
    [told] = play("connections.md", "Pools in a process")["settings"]
    pool = told["default"]["OPTIONS"]["pool"]
    options = connections.settings["default"].setdefault("OPTIONS", {})

    with monkeypatch.context() as changed:
        changed.setitem(options, "pool", pool)
        assert check_pools() == []
        changed.setitem(options, "pool", {**pool, "max_size": pool["max_size"] - 1})
        assert [each.id for each in check_pools()] == ["django_pgqueue.W005"]

    server = reachable["default"]
    with Actor({"default": {**server, "OPTIONS": {**server["OPTIONS"], "pool": pool}}}) as actor:
        pk = actor.do(call, "send", "orders", 1)
        assert actor.do(call, "archive", "orders", pk) == [pk]


def test_embedded(play, settings, tmp_path):
    settings.BASE_DIR = tmp_path

    for told in play("embedded.md")["settings"]:
        base.DatabaseWrapper({"NAME": "", **told["default"]}).server()

    directories = {path.name for path in base._servers if path.parent == tmp_path}
    assert directories == {".pgdata", ".pgdata-tests"}


def test_the_way_from_the_alert_to_the_redrive(play, shop, operator, capsys):
    names = play("dead_letters.md", "From the alert to the redrive")
    dead = make_queue("orders.dead")
    Message.objects.create_queue("orders", dead_letter_queue="orders.dead")
    orders = queue("orders")

    @consumer("orders", retry=NoRetry())
    def charge(message: Message) -> None:
        raise ValueError(f"no card of {message.body['customer']}")

    ids = orders.send_batch([{"customer": number} for number in (7, 7, 7, 8)])
    drain("orders", policies=True)

    assert names["causes"]("orders.dead") == [
        ("ValueError: no card of 7", 3),
        ("ValueError: no card of 8", 1),
    ]
    assert "ValueError: no card of " in page(operator, "message", "failures")
    told = ("orders", "rejected", 1, ["no card of 7"])
    assert names["explain"]("orders.dead", ids[0]) == told

    names["pause"]("orders")
    assert names["try_one"]("orders.dead", ids[0]) == 1
    assert names["send_back"]("orders.dead", conditional={"customer": 7}) == 2
    assert capsys.readouterr().out == "2\n"
    assert Queue.objects.get(name="orders").paused
    names["pause"]("orders", False)
    assert not Queue.objects.get(name="orders").paused
    assert [message.id for message in orders.read(qty=5)] == ids[:3]

    corrected = names["send_corrected"]("orders.dead", ids[3], {"customer": 9})
    assert [message.id for message in orders.read(qty=5)] == [corrected]
    assert dead.metrics().length == 0
    orders.send({"customer": 10})
    [last] = drain("orders", policies=True)
    assert names["discard"]("orders.dead", [last.id]) == [last.id]


def test_prometheus(play, orders, settings, monkeypatch):
    from django_pgqueue.prometheus import counters

    names = play("monitoring.md", "Prometheus")
    apps = [app for each in names["settings"] for app in each]
    settings.ROOT_URLCONF = "guide"

    answer = Client().get("/metrics/queues")

    assert [AppConfig.create(app).name for app in apps] == apps
    scraped = answer.content + counters.page()[1]
    found = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in text_string_to_metric_families(scraped.decode())
    }
    text = section("monitoring.md", "Prometheus")
    told = {
        name for row in re.findall(r"^\| (`pgqueue_.*?) \|", text, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }  # fmt: skip
    assert told == found


def test_tracing(play, orders):
    names = play("monitoring.md", "OpenTelemetry")
    try:
        orders.send(1)
        orders.send(2, headers={"tenant": "other"})
    finally:
        signals.messages_sending.disconnect(names["add_tenant"])

    told = [message.headers for message in Message.objects.order_by("pk")]
    assert told == [{"tenant": "acme"}, {"tenant": "other"}]
    apps = [app for each in names["settings"] for app in each]
    assert [AppConfig.create(app).name for app in apps] == apps


def test_doctor(orders):
    page = section("troubleshooting.md", "The doctor")
    shown = re.findall(r"^(?:ok  |FAIL) ([a-z ]+): (.+)$", page, re.MULTILINE)
    table = re.findall(r"^\| `([a-z ]+)` \|", page, re.MULTILINE)

    assert [check for check, _ in shown] == table == list(diagnosis.CHECKS)
    found = {each.check: each.text for each in diagnosis.examine("default", diagnosis.Limits())}
    assert dict(shown)["objects"] == found["objects"]
