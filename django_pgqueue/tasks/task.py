"""A task with options that Django's own has not: retry, timeout, group and dedup key."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from string import Formatter
from typing import TYPE_CHECKING, Any

from django.tasks.base import Task, TaskResult
from django.tasks.exceptions import InvalidTask

from django_pgqueue import arguments
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.retries import RetryStrategy

__all__ = ["Call", "Options", "PgQueueTask", "call_of"]

if TYPE_CHECKING:
    AnyTask = Task[..., Any]  # at run time Django's class has no parameters
else:
    AnyTask = Task

#: The arguments of one task run: positional ones as a list, or keyword ones as a dict.
Call = Sequence[Any] | Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PgQueueTask(AnyTask):
    """Django's Task, and four options that ``@task`` takes from Django 6.1 on.

    ``retry``
        a strategy of :mod:`django_pgqueue.retries`; None: the backend's, which is NoRetry()
    ``timeout``
        seconds after which a run is ended and counts as an error; None: the backend's
    ``group``
        tasks of one group run in order, one at a time
    ``dedup_key``
        a second task with this key is not enqueued within the queue's dedup window

    The last two are text in which ``{name}`` stands for an argument of the task::

        @task(retry=Exponential(max_attempts=5), timeout=60, group="customer-{customer_id}")
        def charge(customer_id, order_id):
            ...
    """

    retry: RetryStrategy | None = None
    timeout: float | None = None
    group: str | None = None
    dedup_key: str | None = None

    def using(
        self, *, group: str | None = None, dedup_key: str | None = None, **changes: Any
    ) -> PgQueueTask:
        """A new task with other values: Django's four, ``group`` and ``dedup_key``.

        >>> charge.using(priority=10, dedup_key="once").enqueue(7, 8)
        """
        changed: Any = Task.using(self, **changes)
        task: PgQueueTask = replace(
            changed,
            group=changed.group if group is None else group,
            dedup_key=changed.dedup_key if dedup_key is None else dedup_key,
        )
        return task

    def enqueue_many(self, calls: Iterable[Call]) -> list[TaskResult[..., Any]]:
        """Enqueue the task once for each of these arguments, all in one statement.

        >>> email_user.enqueue_many([{"user_id": 7}, {"user_id": 8}])
        [TaskResult(...), TaskResult(...)]

        Raises what ``enqueue`` raises; nothing is enqueued then.
        """
        backend: Any = self.get_backend()
        return list(backend.enqueue_many(self, calls))

    def key(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """The option ``group`` or ``dedup_key`` with these arguments filled in."""
        template: str | None = getattr(self, name)
        if template is None or not _names(template):
            return template
        first = (None,) if self.takes_context else ()
        bound = inspect.signature(self.func).bind(*first, *args, **kwargs)
        bound.apply_defaults()
        return template.format_map(bound.arguments)


class Options:
    """The base of backends that take the options of :class:`PgQueueTask`, and check them.

    It stands before a backend of Django in the list of bases.
    """

    task_class = PgQueueTask

    def validate_task(self, task: Task[..., Any]) -> None:
        """As Django does, and the options too. Raises InvalidTask."""
        super().validate_task(task)  # type: ignore[misc]
        if not isinstance(task, PgQueueTask):
            return
        if task.retry is not None and not callable(getattr(task.retry, "delay", None)):
            raise InvalidTask(
                f"retry must be a strategy of django_pgqueue.retries, such as NoRetry(), not "
                f"{task.retry!r}"
            )
        if task.timeout is not None:
            try:
                seconds = arguments.duration(task.timeout, "timeout").total_seconds()
            except InvalidArgument as error:
                raise InvalidTask(str(error)) from error
            if seconds <= 0:
                raise InvalidTask(f"timeout must be more than zero seconds, not {task.timeout!r}")
        for name in ("group", "dedup_key"):
            _check_template(task, name, getattr(task, name))

    def enqueue_many(
        self, task: Task[..., Any], calls: Iterable[Call]
    ) -> list[TaskResult[..., Any]]:
        """Enqueue a task once for each of these arguments: lists of them, or dicts."""
        return [self.enqueue(task, *call_of(call)) for call in calls]  # type: ignore[attr-defined]


def call_of(call: Any) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments from either."""
    if isinstance(call, Mapping):
        return [], dict(call)
    if isinstance(call, Sequence) and not isinstance(call, (str, bytes)):
        return list(call), {}
    raise InvalidTask(
        f"enqueue_many takes a list or a dict of arguments for each run, not {call!r}"
    )


def _names(template: str) -> list[str]:
    return [field for _, field, _, _ in Formatter().parse(template) if field is not None]


def _check_template(task: PgQueueTask, name: str, template: object) -> None:
    if template is None:
        return
    if not isinstance(template, str):
        raise InvalidTask(f"{name} must be text or None, not {template!r}")
    try:
        names = _names(template)
    except ValueError as error:
        raise InvalidTask(f"{name} {template!r} cannot be filled in: {error}") from error
    known = [
        parameter.name
        for parameter in inspect.signature(task.func).parameters.values()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ][1 if task.takes_context else 0 :]
    for each in names:
        if each not in known:
            raise InvalidTask(
                f"{name} {template!r} names {each or 'no'!r}, which is no argument of "
                f"{task.name}: it has {', '.join(known) or 'none'}. Write {{{{ for a brace."
            )
