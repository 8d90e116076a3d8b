"""Enqueueing: what Django's reference and how-to promise, and our extensions."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import pickle
import re
from typing import Any

import django
import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connection, transaction
from django.test import override_settings
from django.utils import timezone

from django_pgqueue import handlers, queue
from django_pgqueue.checks import check_queues_exist
from django_pgqueue.errors import InvalidMessage, QueueNotFound
from django_pgqueue.models import LiveMessage, Message, Queue
from django_pgqueue.tasks import PgQueueBackend, consuming
from django_pgqueue.tasks import task as own_task
from django_pgqueue.worker.consumer import Consumer
from django_pgqueue.worker.options import Options
from tests.app.models import Order
from tests.conftest import run_sql
from tests.engine.plans.plans import planned_queues
from tests.hearing import heard
from tests.tasks import sample
from tests.tasks.framework import (
    NAME,
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultMismatch,
    TaskResultStatus,
    default_task_backend,
    task,
    task_backends,
    task_enqueued,
)


def stand(result: Any) -> Any:
    return LiveMessage.objects.get(pk=int(result.id))


def test_the_backend_is_the_configured_one(backend):
    assert isinstance(task_backends["default"], PgQueueBackend)
    assert default_task_backend == task_backends["default"]
    assert (backend.alias, backend.options) == ("default", {})
    assert backend.supports_defer
    assert backend.supports_async_task
    assert backend.supports_get_result
    assert backend.supports_priority


@pytest.mark.parametrize("each", [sample.noop, sample.add_async], ids=lambda t: t.name)
def test_enqueue(backend, each):
    result = each.enqueue(1, two=3)

    assert result.status == TaskResultStatus.READY
    assert not result.is_finished
    assert result.enqueued_at is not None
    assert (result.started_at, result.last_attempted_at, result.finished_at) == (None,) * 3
    with pytest.raises(ValueError, match="Task has not finished yet"):
        _ = result.return_value
    assert result.task == each
    assert result.args == [1]
    assert result.kwargs == {"two": 3}
    assert result.attempts == 0
    assert (result.errors, result.worker_ids) == ([], [])
    assert isinstance(result.id, str)
    assert len(result.id) < 64
    assert result.backend == "default"


def test_enqueue_async(committed_backend):
    result = async_to_sync(sample.add.aenqueue)(1, two=2)

    assert result.status == TaskResultStatus.READY
    assert async_to_sync(sample.add.aget_result)(result.id).args == [1]
    with pytest.raises(TaskResultDoesNotExist):
        async_to_sync(sample.noop.aget_result)("123")


def test_the_message_is_what_the_task_says(backend):
    result = sample.add.using(queue_name="emails", priority=7).enqueue(1, two=2)

    [message] = queue("emails").read()
    assert str(message.id) == result.id
    assert message.priority == 7
    assert message.body == {
        "task": "tests.tasks.sample.add",
        "args": [1],
        "kwargs": {"two": 2},
    }


def test_enqueue_is_part_of_the_callers_transaction(committed_backend):
    with pytest.raises(RuntimeError, match="roll back"), transaction.atomic():  # noqa: PT012
        result = sample.noop.enqueue()
        assert sample.noop.get_result(result.id).status == TaskResultStatus.READY
        raise RuntimeError("roll back")

    with pytest.raises(TaskResultDoesNotExist):
        sample.noop.get_result(result.id)


@pytest.mark.parametrize("bad", [dt.datetime(2026, 1, 1), object(), {1, 2}])
def test_arguments_are_json(backend, bad):
    with pytest.raises(TypeError, match="Unsupported type"):
        sample.noop.enqueue(bad)
    with pytest.raises(TypeError, match="Unsupported type"):
        sample.noop.enqueue(key=bad)
    assert not LiveMessage.objects.exists()


def test_a_model_instance_as_an_argument_is_refused_with_advice(backend):
    with pytest.raises(TypeError, match=r"Unsupported type: .*send its pk, 7"):
        sample.noop.enqueue({"order": Order(pk=7)})


def test_enqueue_in_async_code_names_aenqueue(committed_backend):
    async def view() -> None:
        sample.noop.enqueue()

    with pytest.raises(SynchronousOnlyOperation, match=r"await aenqueue\(\.\.\.\)"):
        asyncio.run(view())


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (lambda: own_task(sample.plain).delay(1), "task has no attribute 'delay'. Use enqueue(7)"),
        (lambda: own_task(sample.plain).apply_async, "Use enqueue(7)"),
        (lambda: own_task(sample.plain).enqueue_in, "Use using(run_after=datetime).enqueue(7)"),
        (lambda: own_task(sample.plain).nothing, "task has no attribute 'nothing'"),
    ],
)
def test_other_libraries_methods_of_a_task_are_explained(call, advice):
    with pytest.raises(AttributeError, match=re.escape(advice)):
        call()


@pytest.mark.parametrize(
    ("option", "advice"),
    [
        ("max_retries", "retry=Exponential("),
        ("queue", "pass queue_name="),
        ("bind", "pass takes_context=True"),
        ("time_limit", "pass timeout=60"),
        ("prority", "Did you mean 'priority'?"),
    ],
)
def test_other_libraries_options_of_a_task_are_explained(option, advice):
    with pytest.raises(TypeError, match=f"'{option}'.*{re.escape(advice)}"):
        own_task(**{option: 5})


def test_arguments_that_the_database_cannot_hold_are_refused(backend):
    with pytest.raises(InvalidMessage, match="NUL"):
        sample.noop.enqueue("a\x00b")
    with pytest.raises(InvalidMessage, match="not JSON"):
        sample.noop.enqueue(float("nan"))


def test_tuples_arrive_as_lists(backend):
    result = sample.noop.enqueue((1, 2), pair=(3, 4))

    assert result.args == [[1, 2]]
    assert backend.get_result(result.id).kwargs == {"pair": [3, 4]}


def test_run_after(backend):
    later = timezone.now() + dt.timedelta(hours=1)

    past = sample.noop.using(run_after=timezone.now() - dt.timedelta(days=1)).enqueue()
    result = sample.noop.using(run_after=later).enqueue()

    assert stand(result).vt == later
    assert [str(message.id) for message in queue("default").read(qty=9)] == [past.id]
    again = backend.get_result(result.id)
    assert again.status == TaskResultStatus.READY
    assert again.task.run_after == later
    assert again.task == result.task


@override_settings(USE_TZ=False, TIME_ZONE="Europe/Berlin")
def test_run_after_without_time_zones_is_in_that_of_the_settings(backend):
    later = dt.datetime(2030, 1, 1, 12)

    result = sample.noop.using(run_after=later).enqueue()

    assert stand(result).vt == dt.datetime(2030, 1, 1, 12)
    again = backend.get_result(result.id)
    assert again.task.run_after == later
    assert timezone.is_naive(again.enqueued_at)


def test_a_naive_run_after_is_refused(backend):
    with pytest.raises(InvalidTask, match="run_after must be an aware datetime"):
        sample.noop.using(run_after=dt.datetime(2030, 1, 1))


@pytest.mark.parametrize("priority", [-101, 101, 3.1])
def test_a_bad_priority_is_refused(backend, priority):
    with pytest.raises(InvalidTask, match="priority must be a whole number"):
        sample.noop.using(priority=priority)


def test_higher_priorities_are_read_first(backend):
    ids = [sample.noop.using(priority=p).enqueue().id for p in (-100, 0, 100)]

    assert [str(m.id) for m in queue("default").read(qty=3)] == ids[::-1]


def test_an_unknown_queue_is_refused(backend):
    with pytest.raises(InvalidTask, match="Queue 'unknown' is not valid for backend"):
        sample.noop.using(queue_name="unknown")


def test_tasks_are_checked_when_they_are_enqueued_too(backend, configure):
    to_emails = sample.noop.using(queue_name="emails")
    configure(queues=["default"])

    with pytest.raises(InvalidTask, match="Queue 'emails' is not valid"):
        to_emails.enqueue()
    with pytest.raises(InvalidTask, match="Queue 'emails' is not valid"):
        async_to_sync(to_emails.aenqueue)()


def test_no_queues_in_settings_are_any_that_exists(db, configure):
    configure(queues=[])
    to_any = sample.noop.using(queue_name="anything")

    with pytest.raises(QueueNotFound, match="Create it first"):
        to_any.enqueue()
    Message.objects.create_queue("anything")
    assert to_any.enqueue().id


def test_a_missing_queue_names_the_command_that_creates_it(db, configure):
    configure()

    with pytest.raises(QueueNotFound, match=r"Run manage\.py migrate, which makes it"):
        sample.noop.enqueue()
    with pytest.raises(QueueNotFound, match=r"Run manage\.py migrate, which makes it"):
        default_task_backend.enqueue_many(sample.noop, [[], []])


def test_missing_tables_name_the_command_that_creates_them(db, configure):
    configure()
    run_sql("ALTER TABLE pgqueue_queue RENAME TO elsewhere")

    with pytest.raises(QueueNotFound, match=r"Run manage\.py migrate, which makes it"):
        sample.noop.enqueue()


@pytest.mark.django_db(databases=["default", "other"])
def test_the_command_names_another_database(configure):
    configure(database="other")

    with pytest.raises(QueueNotFound, match=r"Run manage\.py migrate --database other, which"):
        sample.noop.enqueue()


def test_a_consumer_without_its_queue_names_the_command_that_creates_it(db, configure):
    configure()
    consuming.register()

    with pytest.raises(QueueNotFound, match=r"Run manage\.py migrate, which makes it"):
        Consumer(handlers.handlers(["emails"]), Options())


def test_w002_names_the_command(db, configure):
    configure()

    hints = {each.hint for each in check_queues_exist(databases=["default"])}

    assert hints == {"Run manage.py migrate, which makes it."}


def test_a_context_must_be_taken(backend):
    with pytest.raises(InvalidTask, match="first argument of 'context'"):
        task(takes_context=True)(sample.add.func)


@pytest.mark.skipif(django.VERSION < (6, 1), reason="Django 6.0 cannot pickle its tasks")
def test_tasks_and_results_can_be_pickled(backend):
    result = sample.noop.enqueue(1)

    assert pickle.loads(pickle.dumps(sample.noop)) == sample.noop
    assert pickle.loads(pickle.dumps(result)) == result


@pytest.mark.parametrize("bad", ["123", "0", "-1", "no number", "9" * 30, "", None])
def test_a_missing_result(backend, bad):
    with pytest.raises(TaskResultDoesNotExist):
        sample.noop.get_result(bad)
    with pytest.raises(TaskResultDoesNotExist):
        backend.get_result(bad)


def test_a_message_that_is_no_task_has_no_result(backend):
    pk = queue("default").send({"order": 7})

    with pytest.raises(TaskResultDoesNotExist):
        backend.get_result(str(pk))


@pytest.mark.parametrize("name", ["default", "emails"])
def test_a_result_is_looked_for_in_the_queues_of_the_backend(backend, name):
    Message.objects.create_queue("elsewhere")
    result = sample.noop.using(queue_name=name).enqueue(1)

    with planned_queues(connection) as planned:
        backend.get_result(result.id)

    assert planned == {Message.objects.resolve(each).pk for each in ("default", "emails")}


def test_a_dead_letter_is_found_after_its_queue_sends_them_elsewhere(backend):
    dead = Message.objects.create_queue("dead")
    Queue.objects.filter(name="default").update(dead_letter_queue=dead)
    result = sample.noop.enqueue(1)
    [message] = queue("default").read()
    message.reject("no")

    Queue.objects.filter(name="default").update(dead_letter_queue=None)

    assert backend.get_result(result.id).status == TaskResultStatus.FAILED


def test_a_result_of_another_task(backend):
    result = sample.add.enqueue(1)

    with pytest.raises(TaskResultMismatch, match="Task does not match"):
        sample.noop.get_result(result.id)


def test_a_result_of_a_task_whose_function_is_gone(backend):
    body = {"task": "tests.tasks.sample.gone", "args": [], "kwargs": {}}
    gone = queue("default").send(body)
    plain = queue("default").send({**body, "task": "tests.tasks.sample.not_a_task"})

    with pytest.raises(ImportError, match="gone"):
        backend.get_result(str(gone))
    with pytest.raises(TypeError, match="is not a task"):
        backend.get_result(str(plain))


def test_refresh_of_what_has_not_changed(backend):
    result = sample.noop.enqueue(1)
    again = backend.get_result(result.id)

    again.refresh()

    assert again == backend.get_result(result.id)
    assert again.task == result.task
    assert again.args == result.args


def test_a_task_runs_as_long_as_its_lease_by_the_clock_of_the_server(backend, monkeypatch):
    result = sample.noop.enqueue()
    [message] = queue("default").read()
    monkeypatch.setattr(
        timezone, "now", lambda: dt.datetime.now(dt.timezone.utc) + dt.timedelta(days=1)
    )

    result.refresh()
    assert result.status == TaskResultStatus.RUNNING
    message.extend(0)
    result.refresh()
    assert result.status == TaskResultStatus.READY


def test_enqueueing_is_signalled_and_logged(backend, caplog):
    with heard(task_enqueued) as told, caplog.at_level(logging.DEBUG, NAME):
        result = sample.noop.enqueue()

    [each] = told
    assert (each["sender"], each["task_result"].id) == (PgQueueBackend, result.id)
    assert f"Task id={result.id} path=tests.tasks.sample.noop enqueued" in caplog.text


def test_many_at_once(backend, django_assert_num_queries):
    sample.noop.enqueue()
    # One query looks up the queue in the transaction, and one statement sends all.
    with django_assert_num_queries(2):
        results = backend.enqueue_many(sample.add, [[1], {"one": 2, "two": 3}, (4, 5)])

    assert [(r.args, r.kwargs) for r in results] == [
        ([1], {}),
        ([], {"one": 2, "two": 3}),
        ([4, 5], {}),
    ]
    assert [backend.get_result(r.id).args for r in results] == [[1], [], [4, 5]]
    assert backend.enqueue_many(sample.add, []) == []


def test_very_many_go_by_copy(backend, pgqueue):
    pgqueue(COPY_THRESHOLD=3)
    later = timezone.now() + dt.timedelta(hours=1)

    results = backend.enqueue_many(
        sample.add.using(priority=3, run_after=later), [[n] for n in range(5)]
    )

    assert {(m.priority, m.state) for m in LiveMessage.objects.all()} == {(3, "SCHEDULED")}
    assert [backend.get_result(r.id).args for r in results] == [[n] for n in range(5)]


@pytest.mark.parametrize("call", ["abc", 7, None])
def test_many_take_lists_and_dicts(backend, call):
    with pytest.raises(InvalidTask, match="a list or a dict of arguments"):
        backend.enqueue_many(sample.add, [[1], call])
    assert not Message.objects.exists()


def test_many_are_all_or_none(backend):
    with pytest.raises(TypeError, match="Unsupported type"):
        backend.enqueue_many(sample.add, [[1], [object()]])
    assert not Message.objects.exists()


def test_results_in_a_priority_queue(backend):
    """Results compare by their values, like Django's."""
    first, second = sample.noop.enqueue(), sample.noop.enqueue()

    assert first != second
    assert backend.get_result(first.id) == backend.get_result(first.id)
