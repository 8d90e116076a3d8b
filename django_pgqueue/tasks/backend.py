"""The task backends. With PgQueueBackend an enqueued task is a message in its queue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from django.core.checks import CheckMessage, Error
from django.core.exceptions import SynchronousOnlyOperation
from django.db import DEFAULT_DB_ALIAS, ProgrammingError
from django.utils import timezone

from django_pgqueue.acks import AckPolicy
from django_pgqueue.engine import arguments
from django_pgqueue.errors import InvalidArgument, InvalidMessage, QueueNotFound
from django_pgqueue.handlers import Handler
from django_pgqueue.models import Batch, BoundQueue, Queue, UnsentMessage, queue
from django_pgqueue.queues.batch import sending_backend
from django_pgqueue.tasks import framework
from django_pgqueue.tasks.definition import Call, Options, PgQueueTask, call_of
from django_pgqueue.tasks.framework import (
    DEFAULT_TASK_QUEUE_NAME,
    BaseTaskBackend,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    normalize_json,
    task_enqueued,
)
from django_pgqueue.tasks.results import body_of, gone_result, load, new_result
from django_pgqueue.types import was_skipped

_OWN_OPTIONS = ("async_queues", "consume", "database")
_POLICIES = (AckPolicy.NACK_ON_ERROR, AckPolicy.REJECT_ON_ERROR, AckPolicy.TRANSACTIONAL)
#: Options of ``@consumer`` that a backend's OPTIONS cannot set.
_DECIDED = ("batch", "batch_size", "call", "function", "keep_result", "queue", "using")


class PgQueueBackend(Options, BaseTaskBackend):  # type: ignore[misc]
    """Enqueues tasks as messages, in the caller's transaction, and returns their results.

    ::

        TASKS = {
            "default": {
                "BACKEND": "django_pgqueue.tasks.PgQueueBackend",
                "QUEUES": ["default", "emails"],
                "OPTIONS": {"retry": Exponential(max_attempts=5), "max_workers": 8},
            }
        }

    ``OPTIONS`` are those of ``@consumer``, except for ``batch`` and ``keep_result``; ``ack_policy``
    is NACK_ON_ERROR (the default), REJECT_ON_ERROR or TRANSACTIONAL. And:

    ``database``
        the alias of the queues' database (default: the one that the routers choose)
    ``consume``
        the queues whose tasks ``runconsumer`` runs (default: ``QUEUES``)
    ``async_queues``
        the consumed queues whose tasks are async, and run on an event loop (default: none)
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    @property
    def database(self) -> str:
        """The alias of the database that holds the queues."""
        return Queue.objects.database(self.options.get("database"))

    @property
    def consumed(self) -> list[str]:
        """The queues whose tasks ``runconsumer`` runs."""
        return sorted(self.options.get("consume") or self.queues or [DEFAULT_TASK_QUEUE_NAME])

    @property
    def command_for_queues(self) -> str:
        """The command that makes the queues of :attr:`consumed`."""
        alias = self.database
        return "manage.py migrate" + ("" if alias == DEFAULT_DB_ALIAS else f" --database {alias}")

    @property
    def handler_options(self) -> dict[str, Any]:
        """The OPTIONS that are passed to the handlers."""
        return {name: v for name, v in self.options.items() if name not in _OWN_OPTIONS}

    def message_of(
        self, task: Task[..., Any], args: Any, kwargs: Any
    ) -> tuple[dict[str, Any], str | None, str | None]:
        """Return the body, group and unique key of a task's message. Used by schedules."""
        self.validate_task(task)
        args, kwargs = _plain(args, kwargs)
        group, unique = (_key(task, name, args, kwargs) for name in ("group", "unique"))
        return body_of(task, args, kwargs), group, unique

    def enqueue(  # type: ignore[override]
        self, task: Task[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> TaskResult[..., Any]:
        """Send the task's message, in the caller's transaction if there is one.

        Raises InvalidTask, TypeError for arguments that are not JSON, and QueueNotFound.
        """
        return self.enqueue_in(queue(task.queue_name, using=self.database), task, args, kwargs)

    def enqueue_in(
        self, place: BoundQueue | Batch, task: Task[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> TaskResult[..., Any]:
        """Send the task's message to its queue, or as a member of a batch."""
        self.validate_task(task)
        args, kwargs = _plain(args, kwargs)
        with self._naming_command(task.queue_name):
            sent = place.send(
                body_of(task, args, kwargs),
                group=_key(task, "group", args, kwargs),
                unique=_key(task, "unique", args, kwargs),
                **_options(task),
            )
        if was_skipped(sent):
            result = self._holder(task, str(sent), args, kwargs)
        else:
            result = new_result(task, str(sent), args, kwargs, enqueued_at=timezone.now())
        task_enqueued.send(type(self), task_result=result)
        return result

    def enqueue_many(
        self, task: Task[..., Any], calls: Iterable[Call]
    ) -> list[TaskResult[..., Any]]:
        """Enqueue one run of a task for each item of ``calls``: :meth:`PgQueueTask.enqueue_many`.

        >>> default_task_backend.enqueue_many(email_user, [{"user_id": 7}, {"user_id": 8}])
        [TaskResult(...), TaskResult(...)]
        """
        self.validate_task(task)
        runs = [_plain(*call_of(call)) for call in calls]
        if not runs:
            return []
        with self._naming_command(task.queue_name):
            ids = queue(task.queue_name, using=self.database).send_batch(
                [body_of(task, args, kwargs) for args, kwargs in runs],
                group=_keys(task, "group", runs),
                unique=_keys(task, "unique", runs),
                **_options(task),
            )
        now = timezone.now()
        results = [
            new_result(task, str(pk), args, kwargs, enqueued_at=now)
            for pk, (args, kwargs) in zip(ids, runs, strict=True)
        ]
        for result in results:
            task_enqueued.send(type(self), task_result=result)
        return results

    def get_result(self, result_id: str) -> TaskResult[..., Any]:
        """Return the result with this id, computed from its message.

        Raises TaskResultDoesNotExist, also if retention has removed the message, and ImportError
        if the task's function no longer exists.
        """
        return load(result_id, backend=self.alias, using=self.database, queues=self.queues)

    def _holder(
        self, task: Task[..., Any], result_id: str, args: list[Any], kwargs: dict[str, Any]
    ) -> TaskResult[..., Any]:
        """Return the result of the earlier run that holds the key, although it may be gone."""
        try:
            return self.get_result(result_id)
        except TaskResultDoesNotExist:
            return gone_result(task, result_id, args, kwargs)

    @contextmanager
    def _naming_command(self, name: str) -> Iterator[None]:
        """Raise errors of Tasks: one names the command that makes a queue, one the async method."""
        try:
            yield
        except SynchronousOnlyOperation as error:
            raise SynchronousOnlyOperation(
                "enqueue() runs a query, which Django refuses in async code: await aenqueue(...); "
                "for enqueue_many(), await sync_to_async(task.enqueue_many)(...)"
            ) from error
        except (QueueNotFound, ProgrammingError) as error:
            missing = isinstance(error, QueueNotFound) or Queue._meta.db_table in str(error)
            if missing and name in self.consumed:
                raise QueueNotFound(name, self.database, self.command_for_queues) from error
            raise

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        """Return the errors in OPTIONS, for Django's system checks."""
        setting = f"TASKS[{self.alias!r}]['OPTIONS']"
        known = {field.name for field in fields(Handler)} - set(_DECIDED)
        if unknown := sorted(set(self.handler_options) - known):
            text = f"{setting} has no option {unknown[0]!r}."
            hint = f"Its options: {', '.join(sorted({*known, *_OWN_OPTIONS}))}."
            return [Error(text, hint=hint, id="django_pgqueue.E006")]
        try:
            refuse_policy(
                Handler("tasks", lambda message: None, keep_result=True, **self.handler_options)
            )
        except InvalidArgument as error:
            return [Error(f"{setting} is invalid: {error}", id="django_pgqueue.E007")]
        return []


class ImmediateBackend(Options, framework.ImmediateBackend):  # type: ignore[misc]
    """Django's ImmediateBackend: a task runs once, when it is enqueued, without retries."""


class DummyBackend(Options, framework.DummyBackend):  # type: ignore[misc]
    """Django's DummyBackend: tasks are kept in ``results`` and never run."""


def message_of(task: Task[..., Any], /, *args: Any, **kwargs: Any) -> UnsentMessage:
    """Return the message of a task's run that is not sent yet: the callback of a batch.

    Its options are the task's priority, group and ``expires``. Its unique key is left out, since a
    callback is never skipped.

    >>> with queue("default").batch(then=message_of(report, "welcome")) as batch:
    ...     results = [batch.enqueue(welcome, pk) for pk in users]

    Raises InvalidArgument, InvalidTask, and TypeError for arguments that are not JSON.
    """
    backend: PgQueueBackend = sending_backend(task)
    if task.run_after is not None:
        raise InvalidArgument(
            f"task {task.name!r} has a run_after, and the end of a batch is not known: leave it out"
        )
    body, group, _unique = backend.message_of(task, args, kwargs)
    expires = getattr(task, "expires", None)
    target = queue(task.queue_name, using=backend.database)
    return target.message(body, expires=expires, priority=task.priority, group=group)


def refuse_policy(handler: Handler) -> None:
    """Raise InvalidArgument for an ack policy under which a task's status would not be true."""
    if handler.ack_policy not in _POLICIES:
        allowed = ", ".join(policy.name for policy in _POLICIES)
        raise InvalidArgument(
            f"ack_policy {handler.ack_policy.name} is not for tasks: a task succeeds when its "
            f"function returns, and fails when it raises. Choose one of {allowed}"
        )


def _plain(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return the arguments as JSON values."""
    try:
        return normalize_json(list(args)), normalize_json(kwargs)
    except TypeError as error:
        try:
            arguments.json_text([list(args), kwargs], "an argument of the task")
        except InvalidMessage as explained:
            raise TypeError(f"{error}: {explained}") from error
        raise


def _options(task: Task[..., Any]) -> dict[str, Any]:
    """Return the send options that are the same for all runs of a task."""
    start = task.run_after
    if start is not None and timezone.is_naive(start):
        start = timezone.make_aware(start)
    claims = getattr(task, "claims", {})
    expires = getattr(task, "expires", None)
    return {"delay": start, "expires": expires, "priority": task.priority, **claims}


def _key(task: Task[..., Any], name: str, args: list[Any], kwargs: dict[str, Any]) -> str | None:
    return task.key(name, args, kwargs) if isinstance(task, PgQueueTask) else None


def _keys(
    task: Task[..., Any], name: str, runs: list[tuple[list[Any], dict[str, Any]]]
) -> list[str | None] | None:
    if getattr(task, name, None) is None:
        return None
    return [_key(task, name, args, kwargs) for args, kwargs in runs]
