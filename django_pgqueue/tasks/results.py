"""The result of a task, computed from its message, archive row and attempts."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.utils import dateparse, timezone
from django.utils.module_loading import import_string

from django_pgqueue.errors import (
    MessageCancelled,
    MessageExpired,
    MessageNotFound,
    PgQueueError,
    QueueNotFound,
)
from django_pgqueue.models import ArchivedMessage, Attempt, LiveMessage, Message, Queue, queue
from django_pgqueue.tasks.framework import (
    Task,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
)
from django_pgqueue.types import State

if TYPE_CHECKING:
    _TaskResult = TaskResult[..., Any]
else:
    _TaskResult = TaskResult

#: The worker id of an attempt that is not stored.
UNKNOWN = "unknown"


class MessageResult(_TaskResult):
    """The result of a task that a message runs."""

    @property
    def note(self) -> Any:
        """What the task has noted last with ``context.message.note()``. None without a note."""
        backend: Any = task_backends[self.backend]
        return queue(self.task.queue_name, using=backend.database).note(int(self.id))


def body_of(task: Task[..., Any], args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the body of the message that runs a task."""
    body = {"task": task.module_path, "args": args, "kwargs": kwargs}
    if task.run_after is not None:
        body["run_after"] = task.run_after.isoformat()
    return body


def is_task(body: object) -> bool:
    """Whether a body has the form that a task backend sends."""
    return (
        isinstance(body, dict)
        and isinstance(body.get("task"), str)
        and isinstance(body.get("args"), list)
        and isinstance(body.get("kwargs"), dict)
    )


def task_of(body: dict[str, Any], queue_name: str, priority: int, backend: str) -> Task[..., Any]:
    """Return the task that a message runs, with the options given when it was enqueued.

    Raises ImportError if the task's function no longer exists, and TypeError if the body names
    something that is not a task.
    """
    task = _task(body["task"], queue_name, priority, backend)
    if "run_after" not in body:
        return task
    return task.using(run_after=dateparse.parse_datetime(body["run_after"]))


@lru_cache(maxsize=1000)
def _task(path: str, queue_name: str, priority: int, backend: str) -> Task[..., Any]:
    task = import_string(path)
    if not isinstance(task, Task):
        raise TypeError(
            f"{path} is not a task: put @task on it, or delete the messages that name it"
        )
    return task.using(queue_name=queue_name, priority=priority, backend=backend)


def new_result(
    task: Task[..., Any],
    result_id: str,
    args: list[Any],
    kwargs: dict[str, Any],
    *,
    status: TaskResultStatus = TaskResultStatus.READY,
    enqueued_at: dt.datetime | None = None,
    started_at: dt.datetime | None = None,
    last_attempted_at: dt.datetime | None = None,
    finished_at: dt.datetime | None = None,
    errors: Sequence[TaskError] = (),
    worker_ids: Sequence[str] = (),
    return_value: Any = None,
) -> TaskResult[..., Any]:
    """Return a TaskResult with these values."""
    result = MessageResult(
        task=task,
        id=result_id,
        args=args,
        kwargs=kwargs,
        backend=task.backend,
        status=status,
        enqueued_at=enqueued_at,
        started_at=started_at,
        last_attempted_at=last_attempted_at,
        finished_at=finished_at,
        errors=list(errors),
        worker_ids=list(worker_ids),
    )
    if return_value is not None:
        set_return_value(result, return_value)
    return result


def gone_result(
    task: Task[..., Any], result_id: str, args: list[Any], kwargs: dict[str, Any]
) -> TaskResult[..., Any]:
    """Return the result of a run whose message was removed, for example by retention."""
    error = str(MessageNotFound(task.queue_name, int(result_id)))
    values = _failed([], 0, error, MessageNotFound)
    return new_result(task, result_id, args, kwargs, **values)


def set_return_value(result: TaskResult[..., Any], value: Any) -> None:
    object.__setattr__(result, "_return_value", value)


def task_errors(attempts: Sequence[Attempt]) -> list[TaskError]:
    """Convert failed attempts to Django's TaskErrors."""
    return [
        TaskError(exception_class_path=each.error_class, traceback=each.traceback)
        for each in attempts
    ]


def worker_ids(attempts: Sequence[Attempt], failed: int, last: str | None = None) -> list[str]:
    """Return an id or UNKNOWN for each of ``failed`` failed runs, and then ``last``, if given."""
    known = {each.attempt: str(each.process_id or UNKNOWN) for each in attempts}
    ids = [known.get(number, UNKNOWN) for number in range(1, failed + 1)]
    return ids if last is None else [*ids, last]


def load(
    result_id: str, *, backend: str, using: str, queues: Iterable[str]
) -> TaskResult[..., Any]:
    """Return the result with this id. Searches ``queues`` first. Raises TaskResultDoesNotExist."""
    try:
        message_id = int(result_id)
    except (TypeError, ValueError):
        raise TaskResultDoesNotExist(result_id) from None
    if not 0 < message_id < 2**63:
        raise TaskResultDoesNotExist(result_id)
    attempts = Attempt.objects.of(message_id, using=using)
    archive = ArchivedMessage.objects.using(using)
    # Search twice, because the message may move to another queue between two queries.
    for _look_again in range(2):
        message = _find(message_id, queues, using)
        if message is None or not is_task(message.body):
            break
        queue_name = message.queue.name
        # Query the live row first: the message may be archived between the two queries.
        if letter := _dead_letter(message):
            queue_name, values = letter["source"], _dead(letter, attempts)
        elif live := LiveMessage.objects.one(message.queue_id, message_id, using=using).first():
            values = _live(live, attempts)
        elif done := archive.filter(queue=message.queue, pk=message_id).first():
            values = _done(done, attempts)
        else:
            continue
        body: dict[str, Any] = message.body
        task = task_of(body, queue_name, message.priority, backend)
        return new_result(task, str(message.pk), body["args"], body["kwargs"], **values)
    raise TaskResultDoesNotExist(result_id)


def _find(message_id: int, names: Iterable[str], using: str) -> Message | None:
    """Find a message in the named queues and their dead-letter queues, then, slowly, in all."""
    queues: set[int] = set()
    for name in names:
        with suppress(QueueNotFound):
            queue = Queue.objects.resolve(name, using)
            queues |= {queue.pk, queue.dead_letter_queue_id or queue.pk}
    found = Message.objects.using(using).select_related("queue").filter(pk=message_id)
    # A subscription's copy of a task does not run.
    found = found.filter(queue__source=None)
    return found.filter(queue_id__in=queues).first() or found.first()


def _dead_letter(message: Message) -> dict[str, Any] | None:
    """Return the ``x-dead-letter`` header; None unless the message is in a dead-letter queue."""
    headers: Any = message.headers
    letter = headers.get("x-dead-letter") if isinstance(headers, dict) else None
    if not isinstance(letter, dict) or letter.get("source") in (None, message.queue.name):
        return None
    return letter


def _dead(letter: dict[str, Any], attempts: Sequence[Attempt]) -> dict[str, Any]:
    return {
        "enqueued_at": _moment(dateparse.parse_datetime(str(letter.get("enqueued_at")))),
        "finished_at": _moment(dateparse.parse_datetime(str(letter.get("dead_lettered_at")))),
        **_failed(
            attempts, int(letter.get("attempts") or 0), letter.get("error") or letter.get("reason")
        ),
    }


def _live(live: LiveMessage, attempts: Sequence[Attempt]) -> dict[str, Any]:
    last = str(live.process_id or UNKNOWN) if live.in_flight else None
    return {
        "status": TaskResultStatus.RUNNING if live.in_flight else TaskResultStatus.READY,
        "enqueued_at": _moment(live.enqueued_at),
        "started_at": _moment(live.first_read_at),
        "last_attempted_at": _moment(live.last_read_at),
        "errors": task_errors(attempts),
        "worker_ids": worker_ids(attempts, live.attempts, last),
    }


def _done(done: ArchivedMessage, attempts: Sequence[Attempt]) -> dict[str, Any]:
    times = {
        "enqueued_at": _moment(done.enqueued_at),
        "started_at": _moment(done.first_read_at),
        "last_attempted_at": _moment(done.last_read_at),
        "finished_at": _moment(done.archived_at),
    }
    state = State(done.state)
    if state.is_failure:
        return {**times, **_failed(attempts, done.attempts, done.error)}
    if state is State.EXPIRED:
        return {**times, **_failed(attempts, done.attempts, "expired", MessageExpired)}
    if not state.is_success:
        error = done.error or state.label
        return {**times, **_failed(attempts, done.attempts, error, MessageCancelled)}
    # A message that was archived without a run has no stored result and worker.
    kept = done.result if isinstance(done.result, dict) else {}
    worker = kept.get("worker_id", UNKNOWN)
    return {
        **times,
        "status": TaskResultStatus.SUCCESSFUL,
        "errors": task_errors(attempts),
        "worker_ids": worker_ids(attempts, done.attempts - 1, worker) if done.attempts else [],
        "return_value": kept.get("return_value"),
    }


def _failed(
    attempts: Sequence[Attempt],
    failed: int,
    error: str | None,
    kind: type[PgQueueError] | None = None,
) -> dict[str, Any]:
    """Return the result values of a task that failed with ``error`` after ``failed`` runs.

    ``kind``: the error's class, if something other than a failed run ended the task.
    """
    errors = task_errors(attempts)
    if kind is not None or not attempts or attempts[-1].attempt < failed:
        # No stored attempt has the last error. If ``kind`` is None, the deliveries ran out, or the
        # task could not start.
        kind = kind or PgQueueError
        path = f"{kind.__module__}.{kind.__qualname__}"
        errors.append(TaskError(exception_class_path=path, traceback=error or ""))
    return {
        "status": TaskResultStatus.FAILED,
        "errors": errors,
        "worker_ids": worker_ids(attempts, failed),
    }


def _moment(moment: dt.datetime | None) -> dt.datetime | None:
    """Make the datetime aware or naive, as USE_TZ demands."""
    if moment is None or timezone.is_aware(moment) == settings.USE_TZ:
        return moment
    return timezone.make_aware(moment) if settings.USE_TZ else timezone.make_naive(moment)
