"""Options in a task's decorator: retry, timeout, expires, group and unique key."""

from __future__ import annotations

import logging
import pickle
from typing import Any
from unittest import mock

import django
import pytest
from django.core.checks import Error
from django.core.management import call_command
from django.test import override_settings

from django_pgqueue import queue
from django_pgqueue.engine.settle.settling import erase
from django_pgqueue.errors import HandlerTimeout, InvalidArgument, MessageExpired, MessageNotFound
from django_pgqueue.models import ArchivedMessage, LiveMessage, Message, Queue
from django_pgqueue.retries import Constant, NoRetry
from django_pgqueue.tasks import PgQueueBackend, PgQueueTask, consuming, task
from django_pgqueue.tasks.consuming import create_queues
from django_pgqueue.testing import travel
from tests.hearing import heard
from tests.tasks import sample, sample_options
from tests.tasks.framework import (
    NAME,
    InvalidTask,
    TaskResultStatus,
    default_task_backend,
    task_finished,
)
from tests.tasks.framework import task as task_of_django


def test_a_task_of_a_class_with_its_own_call_is_called_by_it(committed_backend, work):
    result = sample_options.one_more.enqueue()

    work()

    assert committed_backend.get_result(result.id).return_value == 101


def test_a_task_has_options_that_survive_using(backend):
    changed = sample_options.charge.using(priority=3).using(queue_name="emails")

    assert isinstance(changed, PgQueueTask)
    assert changed.group == "customer-{customer_id}"
    assert changed.priority == 3
    assert changed.using(group="one", priority=4).group == "one"
    assert sample_options.charge.group == "customer-{customer_id}"
    assert sample_options.stubborn.using().retry == Constant(seconds=0, max_attempts=3)


@pytest.mark.skipif(django.VERSION < (6, 1), reason="Django 6.0 cannot pickle its tasks")
def test_options_can_be_pickled(backend):
    for each in (sample_options.charge, sample_options.stubborn, sample_options.endless):
        assert pickle.loads(pickle.dumps(each)) == each


def test_a_retry_of_its_own(committed_backend, work):
    bad, good = sample_options.stubborn.enqueue(), sample_options.third_time_lucky.enqueue()
    once = sample.fail.enqueue()

    work()
    for result in (bad, good, once):
        result.refresh()

    assert (bad.status, bad.attempts) == (TaskResultStatus.FAILED, 3)
    assert (good.return_value, good.attempts) == (3, 3)
    assert [e.traceback.splitlines()[-1] for e in good.errors] == [
        "ValueError: attempt 1",
        "ValueError: attempt 2",
    ]
    assert once.attempts == 1


def test_a_timeout_of_its_own(committed_backend, work):
    result, other = sample_options.endless.enqueue(), sample.add.enqueue(1)

    work()
    result.refresh()
    other.refresh()

    assert result.status == TaskResultStatus.FAILED
    assert result.errors[0].exception_class is HandlerTimeout
    assert other.return_value == 1


@pytest.mark.parametrize("many", [False, True], ids=["enqueue", "enqueue_many"])
def test_a_task_that_expired_is_not_run_and_its_result_says_so(committed_backend, work, many):
    late = sample.add.using(expires=60)
    result = late.enqueue_many([[1]])[0] if many else late.enqueue(1)
    travel(60)

    with heard(task_finished) as told:
        work()
    result.refresh()

    [ended] = [each["task_result"] for each in told]
    assert (ended.id, ended.status) == (result.id, TaskResultStatus.FAILED)
    assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 0)
    assert result.errors[0].exception_class is MessageExpired


def test_an_expired_message_that_is_no_task_keeps_no_signal_from_a_task(committed_backend, work):
    queue("default").send("no task", expires=60)
    result = sample.add.using(expires=60).enqueue(1)
    queue("default").send({"task": "gone.by_now", "args": [], "kwargs": {}}, expires=60)
    last = sample.add.using(expires=60).enqueue(2)
    travel(60)

    with heard(task_finished) as told:
        work()

    assert [each["task_result"].id for each in told] == [result.id, last.id]


def test_a_group_and_a_unique_are_filled_in(backend):
    first = sample_options.charge.enqueue(7, order_id=3)
    again = sample_options.charge.enqueue(order_id=3, customer_id=7)
    other = sample_options.charge.enqueue(7)

    assert again.id == first.id
    assert other.id != first.id
    assert again.args == [7]
    groups = LiveMessage.objects.order_by("pk").values_list("group_key", flat=True)
    assert list(groups) == ["customer-7", "customer-7"]


def test_a_group_runs_in_order(committed_backend, work):
    results = sample_options.in_line.enqueue_many([[n] for n in range(20)])

    work(workers=4)

    assert sample.ran == list(range(20))
    assert committed_backend.get_result(results[-1].id).return_value is None


def test_many_with_keys(backend):
    calls = [{"customer_id": 1}, {"customer_id": 2}, {"customer_id": 1}]

    one, two, three = sample_options.charge.enqueue_many(calls)

    assert one.id == three.id
    assert two.id != one.id
    assert LiveMessage.objects.count() == 2


def test_a_key_can_be_given_for_one_call(backend):
    once = sample.noop.using(unique="once")

    assert once.enqueue().id == once.enqueue(2).id
    assert sample.noop.enqueue().id != once.enqueue().id


@pytest.mark.parametrize("many", [False, True], ids=["enqueue", "enqueue_many"])
def test_a_key_belongs_to_its_task(backend, many):
    def enqueue(each: Any) -> str:
        return (each.enqueue_many([[7, 3]])[0] if many else each.enqueue(7, 3)).id

    assert enqueue(sample_options.charge) != enqueue(sample_options.refund)
    keys = Message.objects.order_by("pk").values_list("unique_key", flat=True)
    assert list(keys) == [f"{sample_options.__name__}.{name}:7/3" for name in ("charge", "refund")]


@pytest.mark.parametrize(
    ("one", "same"),
    [
        ({"a": 1, "b": [True, None]}, {"b": [True, None], "a": 1.0}),
        ([{"a": 1, "b": 2}], ({"b": 2, "a": 1},)),
        (1, 1.0),
        ("1", 1),
    ],
)
def test_arguments_that_are_equal_json_have_one_key(backend, one, same):
    assert sample_options.refund.enqueue(one).id == sample_options.refund.enqueue(same).id


@pytest.mark.parametrize(("one", "other"), [(True, 1), (1, 1.5), ({"a": 1}, {"a": 2}), (None, "")])
def test_other_arguments_have_other_keys(backend, one, other):
    assert sample_options.refund.enqueue(one).id != sample_options.refund.enqueue(other).id


@pytest.mark.parametrize("gone", ["purged", "erased"])
def test_a_key_whose_holder_is_gone_gives_a_result_that_says_so(backend, gone):
    first = sample_options.charge.enqueue(7)
    if gone == "purged":
        queue("default").purge()
    else:
        queue("default").archive(int(first.id))
        ArchivedMessage.objects.all().delete()
        erase(Queue.objects.resolve("default").opened, [int(first.id)])

    again = sample_options.charge.enqueue(7)

    assert (again.id, again.args, again.status) == (first.id, [7], TaskResultStatus.FAILED)
    assert again.errors[0].exception_class is MessageNotFound
    assert not LiveMessage.objects.exists()


@pytest.mark.parametrize("many", [False, True])
def test_a_task_holds_its_key_as_its_options_say(backend, many):
    each = task(unique="{one}", until="done", on_conflict="replace")(sample.add.func)

    def enqueue(one: int, two: int) -> str:
        return (each.enqueue_many([[one, two]])[0] if many else each.enqueue(one, two)).id

    first, second = enqueue(1, 2), enqueue(1, 3)

    assert first != second
    [left] = LiveMessage.objects.all()
    assert str(left.pk) == second
    assert default_task_backend.get_result(first).status == TaskResultStatus.FAILED
    queue("default").read()
    assert enqueue(1, 4) == second, "what runs is not replaced"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"retry": 3}, "retry must be a strategy"),
        ({"timeout": 0}, "timeout must be more than zero"),
        ({"timeout": "soon"}, "timeout must be seconds"),
        ({"expires": 0}, "expires must be more than zero"),
        ({"group": 7}, "group must be text"),
        (
            {"group": "{nobody}"},
            r"\{nobody\} is not an argument of add, whose arguments are one, two",
        ),
        ({"unique": "{}"}, r"\{\} is not an argument"),
        ({"unique": "{one"}, "is not a valid template"),
        ({"until": "done"}, "need unique="),
        ({"unique": "k", "until": "never"}, "until must be"),
        ({"unique": "k", "max_wait": 5}, "max_wait needs on_conflict"),
        ({"priority": 200}, "priority must be"),
    ],
)
def test_bad_options_are_refused_when_the_task_is_defined(backend, options, message):
    with pytest.raises(InvalidTask, match=message):
        task(**options)(sample.add.func)


@pytest.mark.parametrize("function", [sample_options.generate, sample_options.agenerate])
@pytest.mark.parametrize("decorator", [task, task_of_django])
def test_a_generator_function_is_no_task(backend, decorator, function):
    with pytest.raises(InvalidTask, match="has a yield"):
        decorator(function)


@pytest.mark.parametrize("name", ["ImmediateBackend", "DummyBackend"])
def test_the_backends_for_tests_take_the_same_options(name, db):
    tasks = {"default": {"BACKEND": f"django_pgqueue.tasks.{name}"}}
    with override_settings(TASKS=tasks):
        each = task(retry=NoRetry(), timeout=5, group="g", unique="{one}")(sample.add.func)
        [one, two] = each.enqueue_many([[1], {"one": 2}])
        with pytest.raises(InvalidTask, match="retry must be"):
            task(retry=3)(sample.add.func)
        if name == "DummyBackend":
            assert default_task_backend.results == [one, two]
        else:
            assert (one.return_value, two.return_value) == (1, 2)


@pytest.mark.parametrize("name", ["dummy.DummyBackend", "immediate.ImmediateBackend"])
def test_backends_of_others_ignore_the_options(name, db):
    with override_settings(TASKS={"default": {"BACKEND": f"{NAME}.backends.{name}"}}):
        each = task(retry=NoRetry(), group="g", unique="{one}")(sample.add.func)
        assert len(each.enqueue_many([[1], {"one": 2}])) == 2
        assert each.using(priority=3, group="h").group == "h"


def test_a_project_may_have_a_subclass_of_the_task(backend):
    class Own(PgQueueTask[..., Any]):
        __slots__ = ()

    with mock.patch.object(PgQueueBackend, "task_class", Own):
        assert isinstance(task(sample.add.func), Own)


@pytest.mark.parametrize("option", ["retry", "timeout", "expires", "group", "unique"])
def test_an_option_that_djangos_decorator_refuses_names_ours(db, own_handlers, monkeypatch, option):
    tasks = {
        "default": {"BACKEND": "django_pgqueue.tasks.PgQueueBackend"},
        "plain": {"BACKEND": f"{NAME}.backends.dummy.DummyBackend"},
    }

    def discover(module: str) -> None:
        options: Any = {option: None, "backend": "plain"}
        task_of_django(**options)(sample.add.func)

    monkeypatch.setattr(consuming, "autodiscover_modules", discover)

    with (
        override_settings(TASKS=tasks),
        pytest.raises(
            InvalidArgument, match=rf"'{option}'.*: from django_pgqueue.tasks import task$"
        ) as raised,
    ):
        consuming.register()
    assert "discover" in [frame.name for frame in raised.traceback]


def test_another_mistake_in_a_tasks_module_stays(backend, monkeypatch):
    def discover(module: str) -> None:
        raise TypeError("task() got an unexpected keyword argument 'retries'")

    monkeypatch.setattr(consuming, "autodiscover_modules", discover)

    with pytest.raises(TypeError, match="retries"):
        consuming.register()


@pytest.mark.parametrize(
    ("options", "check_id", "says", "hint"),
    [
        ({"retries": 3}, "E006", "retries", "retry"),
        ({"max_workers": 0}, "E007", "max_workers must be a whole number", ""),
        ({"ack_policy": "ACK"}, "E007", "ack_policy ACK is not for tasks", ""),
        ({"ack_policy": "MANUAL"}, "E007", "ack_policy MANUAL is not for tasks", ""),
        ({"ack_policy": "ACK_FIRST"}, "E007", "ACK_FIRST", ""),
    ],
)
def test_the_check_finds_bad_options(db, configure, options, check_id, says, hint):
    configure(**options)

    [found] = default_task_backend.check()

    assert isinstance(found, Error)
    assert found.id == f"django_pgqueue.{check_id}"
    assert says in found.msg
    assert hint in (found.hint or "")


def test_a_good_configuration_passes(db, configure):
    configure(retry=Constant(seconds=1), consume=["default"], async_queues=["default"])

    assert default_task_backend.check() == []


def test_migrate_makes_the_queues(db, configure):
    configure(consume=["default", "emails"])

    call_command("migrate", verbosity=0)
    call_command("migrate", verbosity=0)

    assert sorted(Queue.objects.values_list("name", flat=True)) == ["default", "emails"]
    assert queue("default").send({}) > 0


def test_a_flush_makes_them_again(db, configure):
    configure(consume=["default", "emails"])

    create_queues(using="default")  # as post_migrate does after a flush, without a plan

    assert sorted(Queue.objects.values_list("name", flat=True)) == ["default", "emails"]


def test_a_log_of_a_duplicate_is_no_error(backend, caplog):
    with caplog.at_level(logging.DEBUG, NAME):
        sample.noop.using(unique="once").enqueue()

    assert "enqueued" in caplog.text
