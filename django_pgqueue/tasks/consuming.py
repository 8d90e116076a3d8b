"""The handlers with which consumers run tasks: one for each queue of a task backend."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from time import monotonic
from typing import TYPE_CHECKING, Any

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.db import DatabaseError, transaction
from django.utils import timezone
from django.utils.module_loading import autodiscover_modules

from django_pgqueue import handlers, signals
from django_pgqueue.acks import Reject
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.handlers import Handler
from django_pgqueue.models import Attempt, Message, Queue
from django_pgqueue.retries import Exponential, NoRetry, RetryStrategy
from django_pgqueue.tasks.backend import PgQueueBackend, refuse_policy
from django_pgqueue.tasks.framework import (
    Task,
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
    task_backends,
    task_finished,
    task_started,
)
from django_pgqueue.tasks.results import (
    is_task,
    new_result,
    set_return_value,
    task_errors,
    task_of,
    worker_ids,
)
from django_pgqueue.types import Receipt
from django_pgqueue.worker.running import refuse_unfinished

if TYPE_CHECKING:
    _TaskContext = TaskContext[..., Any]
else:
    _TaskContext = TaskContext

#: Strategy for unknown tasks: during a deployment this process may not have the new code yet.
_UNKNOWN_TASK = Exponential(first=5, longest=60, max_attempts=10)

#: Matches the error that Django's own @task raises for our options: always in Django 6.0, and with
#: Django's own backends in later versions.
_REFUSED_OPTION = re.compile(
    r"(\btask|Task\.__init__)\(\) got an unexpected keyword argument "
    r"'(retry|timeout|expires|group|unique|until|on_conflict|max_wait)'"
)

#: Whether a function is async. Task.call looks at each run, which takes longer than an empty task.
_is_async = lru_cache(maxsize=1000)(iscoroutinefunction)


class RunContext(_TaskContext):
    """The context of a task's run, with the message that runs it: for its steps and notes.

    ::

        @task(takes_context=True)
        def order(context, number):
            receipt = context.message.step("charge", charge_card, number)
    """

    message: Message

    def __init__(self, task_result: TaskResult[..., Any], message: Message) -> None:
        super().__init__(task_result=task_result)
        object.__setattr__(self, "message", message)


@dataclass(frozen=True)
class TaskHandler(Handler):
    """The handler of one queue of a task backend. A task's own options take precedence."""

    backend: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_policy(self)

    @property
    def label(self) -> str:
        return f"the tasks of TASKS[{self.backend!r}]"

    @property
    def queue_made_by(self) -> str | None:
        backend: Any = task_backends[self.backend]
        return str(backend.command_for_queues)

    @property
    def has_timeouts(self) -> bool:
        return True

    def timeout_of(self, message: Message) -> float | None:
        task = self._task(message)
        own: float | None = getattr(task, "timeout", None)
        return self.timeout if own is None else own

    def retry_of(self, message: Message) -> RetryStrategy:
        task = self._task(message)
        if task is None:
            return _UNKNOWN_TASK if is_task(message.body) else NoRetry()
        own: RetryStrategy | None = getattr(task, "retry", None)
        return self.retry if own is None else own

    def set_tasks(self, messages: Sequence[Message]) -> None:
        # Set only names of existing tasks: they become labels of metrics, so they must be few.
        for message in messages:
            task = self._task(message)
            message.task = None if task is None else task.module_path

    def _task(self, message: Message) -> Task[..., Any] | None:
        try:
            return task_of(message.body, message.queue_name, message.priority, self.backend)
        except Exception:
            # The handler's run raises this error again.
            return None


def register() -> None:
    """Import all ``tasks.py``, and register a handler for each queue of each task backend.

    Raises InvalidArgument if a queue already has a handler.
    """
    backends = _backends()
    if backends:
        _discover()
    for backend in backends:
        asynchronous = set(backend.options.get("async_queues", ()))
        options: dict[str, Any] = {"retry": NoRetry(), **backend.handler_options}
        options |= {"using": backend.options.get("database"), "keep_result": True}
        options["backend"] = backend.alias
        for name in backend.consumed:
            runner = _async_runner if name in asynchronous else _runner
            handlers.register(TaskHandler(name, runner(backend), **options))


def _discover() -> None:
    """Import all ``tasks.py``. Raises InvalidArgument if Django's own @task gets our options."""
    try:
        autodiscover_modules("tasks")
    except TypeError as error:
        if not _REFUSED_OPTION.search(str(error)):
            raise
        raise InvalidArgument(
            f"{error}: Django's own @task does not have this option. Import the decorator of this "
            f"package instead: from django_pgqueue.tasks import task"
        ).with_traceback(error.__traceback__) from None


def connect() -> None:
    """Connect the receivers that send ``task_finished`` when a task's outcome is written."""
    signals.messages_completed.connect(_succeeded, dispatch_uid="django_pgqueue.tasks")
    signals.messages_failed.connect(_failed, dispatch_uid="django_pgqueue.tasks")
    signals.messages_exhausted.connect(_ended, dispatch_uid="django_pgqueue.tasks")
    signals.messages_expired.connect(_ended, dispatch_uid="django_pgqueue.tasks")


def create_queues(using: str, **kwargs: Any) -> None:
    """Make the missing queues of the task backends. Receives ``post_migrate``."""
    for backend in _backends():
        if backend.database == using:
            for name in backend.consumed:
                try:
                    with transaction.atomic(using=using):
                        Queue.create(name, using)
                except DatabaseError:
                    # After a migration to an earlier state the tables are missing.
                    return


def _backends() -> list[PgQueueBackend]:
    return [backend for backend in task_backends.all() if isinstance(backend, PgQueueBackend)]


def _runner(backend: PgQueueBackend) -> Callable[[Message, Any], Any]:
    def run(message: Message, context: Any) -> Any:
        task, result, args = _start(message, backend, _worker_id(context))
        is_plain = type(task).call is Task.call and not _is_async(task.func)
        call = task.func if is_plain else task.call
        began = monotonic()
        value = call(*args, **result.kwargs)
        return _returned(result, value, monotonic() - began)

    return run


def _async_runner(backend: PgQueueBackend) -> Callable[[Message, Any], Any]:
    async def run(message: Message, context: Any) -> Any:
        start = sync_to_async(_start)
        task, result, args = await start(message, backend, _worker_id(context))
        began = monotonic()
        value = await task.acall(*args, **result.kwargs)
        return _returned(result, value, monotonic() - began)

    return run


def _worker_id(context: Any) -> str:
    """Return the id of the consumer process; in a test that drains a queue, host and pid."""
    process_id = getattr(context, "process_id", None)
    return f"{socket.gethostname()}:{os.getpid()}" if process_id is None else str(process_id)


def _start(
    message: Message, backend: PgQueueBackend, worker_id: str
) -> tuple[Task[..., Any], TaskResult[..., Any], list[Any]]:
    """Send ``task_started``. Returns the task, its result so far, and positional arguments."""
    if not is_task(message.body):
        raise Reject(
            f"message {message.pk} is not a task: its body must have task, args and kwargs. Queue "
            f"{message.queue_name!r} is for tasks only: send other messages to another queue"
        )
    task = task_of(message.body, message.queue_name, message.priority, backend.alias)
    attempts: Sequence[Attempt] = ()
    if message.attempts:
        attempts = Attempt.objects.of(message.pk, using=message.queue.alias)
    now = timezone.now()
    result = new_result(
        task,
        str(message.pk),
        message.body["args"],
        message.body["kwargs"],
        status=TaskResultStatus.RUNNING,
        enqueued_at=message.enqueued_at,
        started_at=message.first_read_at or now,
        last_attempted_at=now,
        errors=task_errors(attempts),
        worker_ids=worker_ids(attempts, message.attempts, worker_id),
    )
    vars(message)["task_result"] = result
    # Not type(task_backends[alias]): in the run's own context Django would make a new backend.
    task_started.send(type(backend), task_result=result)
    context = [RunContext(result, message)] if task.takes_context else []
    return task, result, [*context, *result.args]


def _returned(result: TaskResult[..., Any], value: Any, seconds: float) -> dict[str, Any]:
    """Return the result to archive. Raises TypeError for a return value that is not JSON.

    The admin counts ``seconds``, the run time, by task.
    """
    refuse_unfinished(value)
    plain = normalize_json(value)
    set_return_value(result, plain)
    return {
        "return_value": plain,
        "worker_id": result.worker_ids[-1],
        "seconds": round(seconds, 6),
    }


def _succeeded(messages: Sequence[Message], **kwargs: Any) -> None:
    for message in messages:
        result: TaskResult[..., Any] | None = vars(message).get("task_result")
        if result is not None:
            _finish(result, TaskResultStatus.SUCCESSFUL)


def _failed(messages: Sequence[Message], outcomes: Sequence[Reject], **kwargs: Any) -> None:
    for message, outcome in zip(messages, outcomes, strict=True):
        result: TaskResult[..., Any] | None = vars(message).get("task_result")
        if result is None:
            continue
        if (failure := outcome.failure) is not None:
            error = TaskError(exception_class_path=failure.error_class, traceback=failure.traceback)
            result.errors.append(error)
        try:
            raise outcome.__cause__ or outcome
        except BaseException:
            # Inside ``except``, because Django's receiver logs the current exception.
            _finish(result, TaskResultStatus.FAILED)


def _ended(
    sender: str, receipts: Sequence[Receipt] = (), ids: Sequence[int] = (), **kwargs: Any
) -> None:
    """Send ``task_finished`` for tasks that expired or whose deliveries ran out."""
    for handler in handlers.handlers():
        if isinstance(handler, TaskHandler) and handler.queue.lower() == sender.lower():
            backend = task_backends[handler.backend]
            for pk in [*ids, *(receipt.id for receipt in receipts)]:
                try:
                    result = backend.get_result(str(pk))
                except (TaskResultDoesNotExist, ImportError, TypeError):
                    continue  # a message that is not a task, or names an unknown one
                task_finished.send(type(backend), task_result=result)


def _finish(result: TaskResult[..., Any], status: TaskResultStatus) -> None:
    object.__setattr__(result, "status", status)
    object.__setattr__(result, "finished_at", timezone.now())
    task_finished.send(type(task_backends[result.backend]), task_result=result)
