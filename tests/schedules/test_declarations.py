"""A declaration removed from the code: its schedule ends with the last process that has it."""

from __future__ import annotations

import datetime as dt
import logging
from typing import Any

import pytest

from django_pgqueue import consumer, queue, schedule, schedules
from django_pgqueue.models import Message, Process, Queue, Schedule
from django_pgqueue.worker import ticker
from tests.schedules.clocks import DAY, NOON, UTC, found
from tests.waiting import until
from tests.worker.test_processes import url
from tests.working.running import runconsumer


class Running:
    """A consumer process of some queues, whose code declares these schedules."""

    def __init__(self, *queues: str, declares: list[str], **options: Any) -> None:
        self._declared: dict[str, Any] = {}
        self._options: dict[str, Any] = {"every": DAY, **options}
        self._process = Process.objects.register(list(queues), version="1", using="default")
        ids = Queue.objects.filter(name__in=queues).values_list("pk", flat=True)
        self._ticker = ticker.Ticker({"default": list(ids)}, lambda alias: self._process.pk)
        self.queues = queues
        self.declares(*declares)

    def declares(self, *names: str) -> None:
        schedules._declared = self._declared
        for name in names:
            schedule(name=name, **self._options)(consumer(self.queues[0])(lambda message: None))
        self.look()

    def look(self) -> None:
        schedules._declared = self._declared
        self._ticker._declared_at.clear()
        self._ticker._look("default")

    def stop(self) -> None:
        self._process.delete()


@pytest.fixture(autouse=True)
def code(own_handlers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ticker, "_GRACE", 0)
    monkeypatch.setattr("django_pgqueue.handlers.registry.register", _register_again)


def _register_again(handler: Any) -> None:
    """Restore a handler: each process has its own registry."""
    from django_pgqueue import handlers

    handlers.registry._handlers[handler.function.__qualname__ + str(id(handler.function)), None] = (
        handler
    )


def running() -> list[str]:
    """The names of the active schedules."""
    return list(Schedule.objects.filter(ended_at=None).values_list("name", flat=True))


def test_a_renamed_function_is_one_schedule_after_its_deploy(orders):
    Running("orders", declares=["nightly"]).stop()

    Running("orders", declares=["nightly_report"])

    assert running() == ["nightly_report"]
    Schedule.objects.update(next_run_at=NOON)
    assert Schedule.objects.send_due(using="default") == 1
    [message] = Message.objects.all()
    assert message.headers["x-schedule"]["name"] == "nightly_report"
    assert (Schedule.objects.seconds_until_next(using="default") or 0) > 0


def test_a_schedule_stays_while_an_old_process_declares_it(orders):
    old = Running("orders", declares=["nightly"])
    new = Running("orders", declares=["nightly_report"])
    assert running() == ["nightly", "nightly_report"]

    old.look()
    assert running() == ["nightly", "nightly_report"]

    old.stop()
    new.look()
    assert running() == ["nightly_report"]


def test_a_restart_ends_no_schedule(orders, monkeypatch):
    monkeypatch.setattr(ticker, "_GRACE", 60)
    Running("orders", declares=["nightly"]).stop()
    new = Running("orders", declares=["nightly_report"])
    assert running() == ["nightly", "nightly_report"]

    Running("orders", declares=["nightly"])
    new.look()
    assert new._ticker._undeclared == {"default": {}}


def test_a_service_ends_no_schedule_of_another(orders):
    queue("mails").create()
    ours = Running("orders", declares=["nightly"])
    theirs = Running("mails", declares=["digest"])
    ours.stop()

    theirs.look()

    assert running() == ["digest", "nightly"]


def test_a_schedule_of_the_admin_does_not_end(orders):
    Schedule.objects.create(name="by hand", queue=Queue.objects.get(), interval=DAY)

    Running("orders", declares=["nightly"])

    assert running() == ["by hand", "nightly"]


def test_a_declaration_that_comes_back_goes_on_from_now(orders):
    Running("orders", declares=["nightly"]).stop()
    Schedule.objects.update(interval=2 * DAY)
    Running("orders", declares=["nightly_report"]).stop()
    Schedule.objects.filter(name="nightly").update(next_run_at=NOON)

    Running("orders", declares=["nightly"])

    assert running() == ["nightly"]
    back = Schedule.objects.get(name="nightly")
    assert back.next_run_at > dt.datetime.now(UTC)
    assert back.interval == 2 * DAY
    assert not Message.objects.exists()


def test_a_process_resumes_schedules_that_ended_while_it_was_silent(orders):
    silent = Running("orders", declares=["nightly"])
    Process.objects.all().delete()
    other = Running("orders", declares=["nightly_report"])
    assert running() == ["nightly_report"]

    silent._process = Process.objects.register(["orders"], version="1", using="default")
    silent.look()
    other.look()

    assert running() == ["nightly", "nightly_report"]


def test_a_declaration_that_is_imported_later_is_made(orders):
    process = Running("orders", declares=["nightly"])

    process.declares("hourly")

    assert running() == ["hourly", "nightly"]


def test_the_end_is_logged_once(orders, caplog):
    Running("orders", declares=["nightly"]).stop()

    with caplog.at_level(logging.WARNING, "django_pgqueue"):
        Running("orders", declares=["nightly_report"]).look()

    [record] = caplog.records
    assert record.getMessage() == (
        "orders: schedule nightly ended, because no running consumer declares it any more"
    )
    assert record.schedule == "nightly"


def test_the_doctor_names_declarations_that_no_consumer_has(orders):
    queue("mails").create()
    Running("orders", declares=["nightly"]).stop()
    assert [each.is_problem for each in found()] == [False]

    Running("mails", declares=["digest"])

    [finding] = found()
    assert finding.text == "schedule nightly is declared by no running consumer"
    assert "delete the schedule in the admin" in finding.action


def test_the_doctor_counts_schedules_that_ended(orders):
    Running("orders", declares=["nightly"]).stop()
    Running("orders", declares=["nightly_report"])
    Schedule.objects.filter(name="nightly").update(next_run_at=NOON, error="no")

    assert [each.text for each in found()] == ["2; none is late; 1 ended for lack of a declaration"]


@pytest.mark.acceptance
@pytest.mark.slow
def test_consumer_processes_end_schedules_that_none_of_them_declares(committed):
    for name in ("patient", "lease"):
        queue(name).create()

    def start(name: str, declares: str) -> Any:
        return runconsumer(url(), name, WORKING_SCHEDULE=f"{name} {declares}")

    with start("patient", "nightly") as old, start("lease", "digest") as other:
        until(lambda: running() == ["digest", "nightly"], seconds=60)
        with start("patient", "nightly_report") as new:
            until(lambda: running() == ["digest", "nightly", "nightly_report"], seconds=60)
            other.terminate()
            other.wait()
            old.kill()
            until(lambda: running() == ["digest", "nightly_report"], seconds=120)

            output = new.output

    assert "schedule nightly ended" in output
