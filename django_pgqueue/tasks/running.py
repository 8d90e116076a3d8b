"""Tasks as a consumer's work: a handler for each queue of a task backend."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from asgiref.sync import sync_to_async
from django.db import DatabaseError, transaction
from django.tasks import task_backends
from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
from django.tasks.signals import task_finished, task_started
from django.utils import timezone
from django.utils.json import normalize_json
from django.utils.module_loading import autodiscover_modules

from django_pgqueue import handlers, signals
from django_pgqueue.acks import Outcome, Reject
from django_pgqueue.handlers import Handler
from django_pgqueue.models import Attempt, Message, Queue
from django_pgqueue.retries import Exponential, NoRetry, RetryStrategy
from django_pgqueue.tasks.backend import PgQueueBackend
from django_pgqueue.tasks.results import (
    is_task,
    new_result,
    task_errors,
    task_of,
    worker_ids,
)
from django_pgqueue.types import Receipt

__all__ = ["TaskHandler", "connect", "create_queues", "register"]

#: While a deployment is under way, the code of a new task may be on its way to this process.
_UNKNOWN_TASK = Exponential(first=5, longest=60, max_attempts=10)


@dataclass(frozen=True)
class TaskHandler(Handler):
    """The handler of one queue of a task backend. Tasks bring options of their own."""

    backend: str = ""

    @property
    def label(self) -> str:
        return f"the tasks of TASKS[{self.backend!r}]"

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

    def _task(self, message: Message) -> Task[..., Any] | None:
        try:
            return _task(message, self.backend)
        except Exception:
            # Whatever its import raises: the run raises it again, and that is the place for it.
            return None


def register() -> None:
    """Register a handler for each queue of each backend, and import all ``tasks.py``.

    Raises InvalidArgument when a queue has another handler.
    """
    backends = _backends()
    if backends:
        autodiscover_modules("tasks")
    for backend in backends:
        asynchronous = set(backend.options.get("async_queues", ()))
        for name in backend.consumed:
            run = _arunner(backend.alias) if name in asynchronous else _runner(backend.alias)
            options = {"retry": NoRetry(), **backend.handler_options}
            handlers.register(
                TaskHandler(
                    name,
                    run,
                    using=backend.options.get("database"),
                    keep_result=True,
                    backend=backend.alias,
                    **options,
                )
            )


def connect() -> None:
    """Have Django's ``task_finished`` sent once an outcome is written."""
    signals.messages_completed.connect(_succeeded, dispatch_uid="django_pgqueue.tasks")
    signals.messages_failed.connect(_failed, dispatch_uid="django_pgqueue.tasks")
    signals.messages_exhausted.connect(_exhausted, dispatch_uid="django_pgqueue.tasks")


def create_queues(using: str, plan: Any = None, **kwargs: Any) -> None:
    """Receives ``post_migrate``: the queues of the task backends are made if they are missing.

    Not after a flush, which has no plan: the tables of queues that it emptied are still there.
    """
    if plan is None:
        return
    for backend in _backends():
        if backend.database == using:
            for name in backend.consumed:
                try:
                    with transaction.atomic(using=using):
                        Queue.create(name, using)
                except DatabaseError:
                    # Migrated to the middle, or to nothing: the tables are not there yet.
                    return


def _backends() -> list[PgQueueBackend]:
    return [backend for backend in task_backends.all() if isinstance(backend, PgQueueBackend)]


def _runner(alias: str) -> Callable[[Message, Any], Any]:
    def run(message: Message, context: Any) -> Any:
        task, result, args = _begin(message, alias, _worker_id(context))
        try:
            return _end(result, task.call(*args, **result.kwargs))
        except BaseException as error:
            vars(message)["task_error"] = error
            raise

    return run


def _arunner(alias: str) -> Callable[[Message, Any], Any]:
    async def run(message: Message, context: Any) -> Any:
        begin = sync_to_async(_begin)
        task, result, args = await begin(message, alias, _worker_id(context))
        try:
            return _end(result, await task.acall(*args, **result.kwargs))
        except BaseException as error:
            vars(message)["task_error"] = error
            raise

    return run


def _worker_id(context: Any) -> str:
    """The consumer process, or where a test drains a queue this very one."""
    process_id = getattr(context, "process_id", None)
    return f"{socket.gethostname()}:{os.getpid()}" if process_id is None else str(process_id)


def _begin(
    message: Message, alias: str, worker_id: str
) -> tuple[Task[..., Any], TaskResult[..., Any], list[Any]]:
    """The task, its result so far, and its positional arguments; Django is told of the start."""
    if not is_task(message.body):
        raise Reject(
            f"message {message.pk} is no task: its body must have task, args and kwargs. Only a "
            f"task backend sends to {message.queue_name!r}; use another queue for messages"
        )
    task = _task(message, alias)
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
    task_started.send(_sender(alias), task_result=result)
    if task.takes_context:
        return task, result, [TaskContext(task_result=result), *result.args]
    return task, result, result.args


def _end(result: TaskResult[..., Any], value: Any) -> dict[str, Any]:
    """The result to archive. Raises TypeError for a return value that is not JSON."""
    plain = normalize_json(value)
    object.__setattr__(result, "_return_value", plain)
    return {"return_value": plain, "worker_id": result.worker_ids[-1]}


def _task(message: Message, alias: str) -> Task[..., Any]:
    return task_of(message.body, message.queue_name, message.priority, alias)


def _sender(alias: str) -> type[Any]:
    return type(task_backends[alias])


def _succeeded(messages: Sequence[Message], **kwargs: Any) -> None:
    for message in messages:
        result: TaskResult[..., Any] | None = vars(message).get("task_result")
        if result is not None:
            _finish(result, TaskResultStatus.SUCCESSFUL)


def _failed(messages: Sequence[Message], outcomes: Sequence[Outcome], **kwargs: Any) -> None:
    for message, outcome in zip(messages, outcomes, strict=True):
        result: TaskResult[..., Any] | None = vars(message).get("task_result")
        if result is None:
            continue
        failure = outcome.failure if isinstance(outcome, Reject) else None
        if failure is not None:
            error = TaskError(exception_class_path=failure.error_class, traceback=failure.traceback)
            result.errors.append(error)
        try:
            if (raised := vars(message).pop("task_error", None)) is not None:
                raise raised
        except BaseException:
            # Django's log takes the exception that is being handled.
            _finish(result, TaskResultStatus.FAILED)
        else:
            _finish(result, TaskResultStatus.FAILED)


def _exhausted(sender: str, receipts: Sequence[Receipt], **kwargs: Any) -> None:
    """Deliveries ran out, of tasks that most likely took their processes with them."""
    for handler in handlers.handlers():
        if isinstance(handler, TaskHandler) and handler.queue.lower() == str(sender).lower():
            backend = task_backends[handler.backend]
            for receipt in receipts:
                task_finished.send(type(backend), task_result=backend.get_result(str(receipt.id)))


def _finish(result: TaskResult[..., Any], status: TaskResultStatus) -> None:
    object.__setattr__(result, "status", status)
    object.__setattr__(result, "finished_at", timezone.now())
    task_finished.send(_sender(result.backend), task_result=result)
