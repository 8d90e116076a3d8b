"""Running tasks: ``manage.py runconsumer`` runs them, and their results show it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connections

from django_pgqueue import handlers, queue, signal
from django_pgqueue.errors import InvalidArgument, MessageCancelled, PgQueueError
from django_pgqueue.models import ArchivedMessage, BoundQueue, Message, Process
from django_pgqueue.retries import Constant
from django_pgqueue.tasks import PgQueueBackend
from django_pgqueue.tasks.consuming import TaskHandler, register
from django_pgqueue.testing import drain
from tests.actors import Actor, manage
from tests.hearing import listening
from tests.tasks import sample
from tests.tasks.framework import NAME, TaskResultStatus, task_finished, task_started
from tests.waiting import until

READY, RUNNING = TaskResultStatus.READY, TaskResultStatus.RUNNING
FAILED, SUCCESSFUL = TaskResultStatus.FAILED, TaskResultStatus.SUCCESSFUL


@pytest.fixture
def heard() -> Iterator[list[tuple[str, Any, str, str]]]:
    """The tasks' signals: name, sender, id, and status at that moment."""
    found: list[tuple[str, Any, str, str]] = []

    def start(sender: Any, task_result: Any, **kwargs: Any) -> None:
        found.append(("started", sender, task_result.id, task_result.status))

    def finish(sender: Any, task_result: Any, **kwargs: Any) -> None:
        found.append(("finished", sender, task_result.id, task_result.status))

    with listening(task_started, start), listening(task_finished, finish):
        yield found


@pytest.fixture
def done(work: Callable[..., None]) -> Callable[..., Any]:
    """Enqueue a task, work until the queues are empty, and return its result."""

    def run(task: Any, *args: Any) -> Any:
        result = task.enqueue(*args)
        work()
        result.refresh()
        return result

    return run


@pytest.mark.parametrize("each", [sample.add, sample.add_async], ids=lambda t: t.name)
def test_a_task_succeeds(committed_backend, work, each):
    result = each.enqueue(1, two=2)

    work()
    result.refresh()

    assert result.status == SUCCESSFUL
    assert result.is_finished
    assert result.return_value == 3
    assert result.enqueued_at <= result.started_at <= result.last_attempted_at
    assert result.last_attempted_at <= result.finished_at
    assert result.attempts == 1
    assert result.errors == []
    assert each.get_result(result.id) == result
    async_to_sync(result.arefresh)()
    assert result.return_value == 3
    kept = ArchivedMessage.objects.get(pk=result.id).result
    assert 0 < kept["seconds"] < (result.finished_at - result.last_attempted_at).total_seconds()


def test_async_queues_run_their_tasks_on_an_event_loop(committed_backend, configure, work):
    configure(async_queues=["emails"])
    to_emails = [t.using(queue_name="emails") for t in (sample.add_async, sample.add)]
    results = [each.enqueue(1) for each in to_emails] + [sample.add_async.enqueue(2)]
    bad = sample.fail_async.using(queue_name="emails").enqueue()

    work()

    assert [committed_backend.get_result(r.id).return_value for r in results] == [1, 1, 2]
    assert committed_backend.get_result(bad.id).status == FAILED
    by_queue = {handler.queue: handler for handler in handlers.handlers()}
    assert by_queue["emails"].is_async
    assert not by_queue["default"].is_async


@pytest.mark.parametrize(
    ("each", "error", "text"),
    [(sample.fail, ValueError, "no such customer"), (sample.leave, SystemExit, "enough")],
)
def test_a_task_that_raises_fails(committed_backend, work, each, error, text):
    result = each.enqueue()

    work()
    result.refresh()

    assert result.status == FAILED
    assert result.is_finished
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value
    assert [e.exception_class for e in result.errors] == [error]
    assert result.errors[0].traceback.endswith(f"{error.__name__}: {text}\n")
    assert result.attempts == 1
    assert result.started_at is not None
    assert result.last_attempted_at <= result.finished_at


@pytest.mark.parametrize(
    ("each", "arguments", "error", "text"),
    [
        (sample.fail_in_two, [], ValueError, "ValueError(ValueError"),
        # Its return value is not JSON.
        (sample.give_an_object, [], TypeError, "Unsupported type"),
        (sample.give_a_coroutine, [], TypeError, "whose work has not run"),
        # The tuple arrives as a list, which cannot be a key.
        (sample.double_keys, [(1, 2, 3)], TypeError, "unhashable type: 'list'"),
    ],
)
def test_an_error_has_its_class_and_traceback(
    committed_backend, done, each, arguments, error, text
):
    result = done(each, *arguments)

    assert result.status == FAILED
    assert result.errors[0].exception_class is error
    assert text in result.errors[0].traceback


@pytest.mark.parametrize("value", [None, 0, "", [], {"a": [1, None]}, "ü", (1, 2)])
def test_return_values_come_back(committed_backend, done, value):
    result = done(sample.give, value)

    assert result.return_value == (list(value) if isinstance(value, tuple) else value)


def test_a_task_has_the_steps_notes_and_waits_of_its_message(committed_backend):
    sample.CALLS.clear()
    result = sample.in_steps.enqueue(7)
    register()
    drain("default")

    result = committed_backend.get_result(result.id)
    assert (result.status, result.note) == (READY, {"charged": 7})
    assert signal("paid:7", "yes") == 1
    drain("default")
    result.refresh()
    assert result.return_value == ["r-7", "yes"]
    assert sample.CALLS == ["charge"]


def test_the_context_is_given(committed_backend, work):
    mine = sample.own_id.enqueue()
    again = sample.second_time_lucky.enqueue()

    work()

    assert sample.own_id.get_result(mine.id).return_value == mine.id
    found = sample.second_time_lucky.get_result(again.id)
    assert found.return_value == {"attempt": 2, "status": "RUNNING", "errors": 1}
    assert found.attempts == 2
    assert [e.exception_class_path for e in found.errors] == ["django_pgqueue.acks.Retry"]
    assert len(set(found.worker_ids)) == 1


@pytest.mark.parametrize("use_tz", [True, False])
def test_a_running_task_is_running(committed_backend, work, settings, use_tz):
    settings.USE_TZ = use_tz
    result = sample.hold.enqueue()
    seen: list[Any] = []

    def look() -> None:
        try:
            assert sample.begun.wait(20)
            result.refresh()
            seen.append((result.status, list(result.worker_ids), result.attempts))
            seen.append([str(pk) for pk in Process.objects.values_list("pk", flat=True)])
        finally:
            sample.go.set()
            connections.close_all()

    observer = threading.Thread(target=look)
    observer.start()
    work()
    observer.join()

    status, workers, attempts = seen[0]
    assert (status, attempts) == (RUNNING, 1)
    assert workers == seen[1]
    with pytest.raises(ValueError, match="Task has not finished yet"):
        _ = result.return_value
    result.refresh()
    assert (result.status, result.worker_ids) == (SUCCESSFUL, workers)


def test_a_lease_that_ran_out_is_ready_again(backend):
    result = sample.noop.enqueue()
    queue("default").read(vt=0, in_transaction=True)

    result.refresh()

    assert result.status == READY
    assert result.started_at is not None


def test_retries_of_the_backend(committed_backend, configure, done):
    configure(retry=Constant(seconds=0, max_attempts=3))
    result = done(sample.fail)

    assert result.status == FAILED
    assert [e.exception_class for e in result.errors] == [ValueError] * 3
    assert result.attempts == len(result.worker_ids) == 3


def test_a_task_that_waits_for_its_next_attempt_is_ready(committed_backend, configure, work):
    configure(retry=Constant(seconds=3600))
    result = sample.fail.enqueue()

    work(max_messages=1)
    result.refresh()

    assert result.status == READY
    assert not result.is_finished
    assert result.attempts == 1
    assert len(result.errors) == 1
    assert result.last_attempted_at is not None


def test_a_dead_letter_has_failed(committed, configure, done):
    configure(queues=["default"])
    Message.objects.create_queue("dead")
    Message.objects.create_queue("default", dead_letter_queue="dead")
    result = done(sample.fail)

    assert result.status == FAILED
    assert result.attempts == 1
    assert [e.exception_class for e in result.errors] == [ValueError]
    assert result.finished_at >= result.enqueued_at
    assert sample.fail.get_result(result.id).task.queue_name == "default"

    BoundQueue("dead").redrive()
    result.refresh()
    assert result.status == READY


def test_a_cancelled_task_has_failed(backend):
    result = sample.noop.enqueue()

    BoundQueue("default").cancel(int(result.id), reason="the customer withdrew")
    result.refresh()

    assert result.status == FAILED
    assert result.attempts == 0
    [error] = result.errors
    assert (error.exception_class, error.traceback) == (MessageCancelled, "the customer withdrew")


def test_the_order_is_that_of_priorities(committed_backend, work):
    for priority in (0, 10, -10, 5):
        sample.give.using(priority=priority).enqueue(priority)

    work(workers=1)

    assert sample.ran == [10, 5, 0, -10]


def test_signals_tell_of_start_and_end(committed_backend, work, heard):
    good = sample.add.enqueue(1)
    work()
    bad = sample.fail.enqueue()
    work()

    assert heard == [
        ("started", PgQueueBackend, good.id, RUNNING),
        ("finished", PgQueueBackend, good.id, SUCCESSFUL),
        ("started", PgQueueBackend, bad.id, RUNNING),
        ("finished", PgQueueBackend, bad.id, FAILED),
    ]


def test_a_retry_is_no_end(committed_backend, configure, work, heard):
    configure(retry=Constant(seconds=0, max_attempts=2))
    sample.fail.enqueue()

    work()

    assert [name for name, *_ in heard] == ["started", "started", "finished"]


def test_the_end_is_signalled_after_it_is_written(committed_backend, work):
    result = sample.add.enqueue(1)
    seen: list[Any] = []

    def look(task_result: Any, **kwargs: Any) -> None:
        found = committed_backend.get_result(task_result.id)
        seen.append((found.status, found.return_value, task_result.return_value))

    with listening(task_finished, look):
        work()

    assert seen == [(SUCCESSFUL, 1, 1)]
    assert result.id


def test_djangos_own_log_has_start_and_end_of_a_task(committed_backend, work, caplog):
    with caplog.at_level(logging.INFO, NAME):
        good, bad = sample.add.enqueue(1), sample.fail.enqueue()
        work(workers=1)

    records = [r for r in caplog.records if r.name == NAME]
    lines = [(r.levelname, r.getMessage()) for r in records]
    path = "path=tests.tasks.sample"
    assert ("INFO", f"Task id={good.id} {path}.add state=RUNNING") in lines
    assert ("INFO", f"Task id={good.id} {path}.add state=SUCCESSFUL") in lines
    assert ("ERROR", f"Task id={bad.id} {path}.fail state=FAILED") in lines
    [error] = [r for r in records if r.levelname == "ERROR"]
    assert error.exc_info
    assert error.exc_info[0] is ValueError
    assert not any(r.exc_info for r in records if r is not error)


def test_deliveries_that_ran_out_fail_the_task(committed, configure, work, heard):
    configure(queues=["default"])
    Message.objects.create_queue("default", max_deliveries=1)
    result = sample.noop.enqueue()
    queue("default").read(vt=0)

    work()
    result.refresh()

    assert result.status == FAILED
    assert result.attempts == 0
    assert len(result.errors) == 1
    assert "gave up after 1 deliveries" in result.errors[0].traceback
    assert ("finished", PgQueueBackend, result.id, FAILED) in heard


def test_a_task_that_kills_its_process_comes_to_an_end(committed, configure, work, reachable):
    configure(queues=["default"])
    Message.objects.create_queue("default", max_deliveries=1, visibility_timeout=1)
    result = sample.die.enqueue()
    settings = {"default": {"BACKEND": "django_pgqueue.tasks.PgQueueBackend"}}

    with Actor(reachable, TASKS=settings) as actor, pytest.raises(BrokenProcessPool):
        actor.do(manage, "runconsumer", "default", no_progress=True)
    result.refresh()
    assert not result.is_finished
    assert result.errors == []

    def ended() -> bool:
        work()
        result.refresh()
        return bool(result.is_finished)

    until(ended, seconds=30)
    assert result.status == FAILED
    assert [e.exception_class for e in result.errors] == [PgQueueError]


def test_a_message_that_is_no_task_is_rejected(committed_backend, work):
    pk = queue("default").send({"order": 7})

    work()

    error = ArchivedMessage.objects.get(pk=pk).error or ""
    assert error.startswith(f"message {pk} is not a task")


def test_an_unknown_task_is_tried_again_as_new_code_may_be_on_its_way(committed_backend, work):
    pk = queue("default").send({"task": "tests.tasks.sample.newer", "args": [], "kwargs": {}})

    work(max_messages=1)

    [attempt] = BoundQueue("default").attempts(pk)
    assert attempt.error_class == "builtins.ImportError"
    assert "newer" in attempt.message
    with pytest.raises(TimeoutError):
        BoundQueue("default").result(pk)


def test_only_tasks_are_run(committed_backend, work):
    pk = queue("default").send({"task": "tests.tasks.sample.plain", "args": [], "kwargs": {}})

    work(max_messages=1)

    assert "is not a task: put @task on it" in BoundQueue("default").attempts(pk)[0].message


@pytest.mark.parametrize("chosen", ["emails", "em*"])
def test_runconsumer_takes_chosen_queues_only(committed_backend, work, chosen):
    sample.give.using(queue_name="emails").enqueue("emails")
    sample.give.enqueue("default")

    work(chosen)

    assert sample.ran == ["emails"]


def test_a_queue_has_tasks_or_a_consumer(backend):
    handlers.consumer("default")(print_it)

    with pytest.raises(InvalidArgument, match=r"is already consumed by .*print_it"):
        register()


def print_it(message: Any) -> None:
    print(message)


def test_options_reach_the_handler(db, configure):
    configure(max_workers=3, timeout=9, consume=["Emails"], visibility_timeout=60)

    register()

    [handler] = handlers.handlers()
    assert isinstance(handler, TaskHandler)
    assert (handler.queue, handler.max_workers, handler.timeout) == ("Emails", 3, 9.0)
    assert handler.visibility_timeout == 60


def test_a_test_can_drain_tasks(backend):
    register()
    result = sample.add.enqueue(1, 2)

    drain("default")
    result.refresh()

    assert result.return_value == 3
    assert len(result.worker_ids) == 1


@pytest.mark.django_db(databases=["default", "other"], transaction=True)
def test_another_database(committed, configure, done):
    configure(queues=["default"], database="other")
    queue("default", using="other").create()
    result = done(sample.add, 1)

    assert result.return_value == 1


WITHOUT_TASKS = """
import sys
import django
django.VERSION = (5, 2, 8, "final", 0)
sys.modules["django_tasks"] = None
"""


def without_tasks(code: str) -> subprocess.CompletedProcess[str]:
    """Run code on Django 5.2 without django-tasks."""
    return subprocess.run(
        [sys.executable, "-c", f"{WITHOUT_TASKS}\n{code}"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"},
    )


def test_the_module_names_the_backport_on_an_older_django():
    run = without_tasks("import django_pgqueue.tasks")

    assert run.returncode == 1
    assert "ImproperlyConfigured: django_pgqueue.tasks needs a Tasks framework" in run.stderr
    assert "which Django 5.2.8 does not have" in run.stderr
    assert "Run pip install 'django-postgres-mq[tasks]' for the backport" in run.stderr


def test_an_older_django_needs_no_backport_for_consumers():
    run = without_tasks("django.setup(); from django_pgqueue import consumer; print('ready')")

    assert (run.stdout, run.stderr) == ("ready\n", "")


@pytest.mark.parametrize("debug", [False, True])
def test_runconsumer_without_logging_shows_a_line_of_a_task_once(debug):
    code = (
        f"import django; from django.conf import settings; settings.configure(DEBUG={debug}); "
        f"django.setup(); from django_pgqueue.observability import logs; "
        f"logs.configure_if_unset(); import logging; logging.getLogger('{NAME}').warning('it ran')"
    )

    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ran.stderr.count("it ran") == 1
