"""Log lines and metrics name a message's task."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from django.dispatch import receiver

from django_pgqueue import consumer, handlers, queue, signals
from django_pgqueue.acks import Reject
from django_pgqueue.models import Message
from django_pgqueue.prometheus import counters
from django_pgqueue.tasks import consuming
from tests.tasks import sample

PATH = "tests.tasks.sample"


def told(caplog: pytest.LogCaptureFixture, text: str) -> logging.LogRecord:
    """The only log record of the package with this text."""
    found = [r for r in caplog.records if r.name == "django_pgqueue" and text in r.getMessage()]
    assert len(found) == 1
    return found[0]


def runs(task: str, outcome: str) -> float | None:
    """The number of a task's runs with an outcome."""
    labels = {"queue": "emails", "task": f"{PATH}.{task}", "outcome": outcome}
    return counters.registry.get_sample_value("pgqueue_task_runs_total", labels)


def test_log_lines_name_the_task(committed_backend, work, caplog):
    bad, lucky = sample.fail.enqueue(), sample.second_time_lucky.enqueue()

    work()

    failed, retried = told(caplog, "failed for good"), told(caplog, "failed in attempt 1")
    assert failed.getMessage().startswith(f"default: message {bad.id} ({PATH}.fail) failed")
    assert retried.getMessage().startswith(
        f"default: message {lucky.id} ({PATH}.second_time_lucky) failed"
    )
    assert vars(failed)["task"] == f"{PATH}.fail"
    assert vars(retried)["task"] == f"{PATH}.second_time_lucky"


def test_the_log_line_of_a_cancelled_task_names_it(committed_backend, work, caplog):
    caplog.set_level(logging.INFO, "django_pgqueue")

    # The receiver is connected while this test keeps a reference to it.
    @receiver(signals.message_started)
    def cancel(message: Message, **kwargs: Any) -> None:
        queue("default").cancel(message.id)

    called_off = sample.noop.enqueue()

    work()

    line = told(caplog, "was cancelled")
    assert line.getMessage().startswith(f"default: message {called_off.id} ({PATH}.noop) was")
    assert vars(line)["task"] == f"{PATH}.noop"


def test_log_lines_of_other_queues_name_the_message_alone(committed, own_handlers, work, caplog):
    @consumer("orders")
    def charge(message: Message) -> None:
        raise Reject("no such order")

    queue("orders").create()
    pk = queue("orders").send({"task": f"{PATH}.noop", "args": [], "kwargs": {}})

    work("orders")

    assert f"orders: message {pk} failed" in told(caplog, "failed for good").getMessage()


def test_metrics_count_the_runs_of_each_task(committed_backend, work, connected):
    for each in (sample.add, sample.add, sample.fail, sample.second_time_lucky):
        each.using(queue_name="emails").enqueue(*([1] if each is sample.add else []))

    work()

    assert runs("add", "completed") == 2
    assert runs("fail", "failed") == 1
    assert runs("second_time_lucky", "retried") == 1
    assert runs("second_time_lucky", "completed") == 1
    labels = {"queue": "emails", "task": f"{PATH}.add"}
    assert counters.registry.get_sample_value("pgqueue_task_run_seconds_count", labels) == 2


def test_a_task_that_does_not_exist_is_no_name(backend):
    queue("default").send({"task": "no.such.task", "args": [], "kwargs": {}})
    [message] = queue("default").read(in_transaction=True)
    consuming.register()
    [handler] = handlers.handlers(["default"])

    handler.set_tasks([message])

    assert message.task is None
