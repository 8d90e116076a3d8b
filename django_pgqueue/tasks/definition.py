"""Tasks with more options than Django's: retry, timeout, expires, group, unique and so on."""

from __future__ import annotations

import datetime as dt
import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from string import Formatter
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    NoReturn,
    ParamSpec,
    TypeVar,
    overload,
)

from django_pgqueue.engine import arguments
from django_pgqueue.engine.habits import TASK, TASK_METHODS, unexpected
from django_pgqueue.engine.send.once import claim
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.retries import RetryStrategy
from django_pgqueue.tasks.framework import (
    DEFAULT_TASK_BACKEND_ALIAS,
    DEFAULT_TASK_PRIORITY,
    DEFAULT_TASK_QUEUE_NAME,
    InvalidTask,
    Task,
    TaskContext,
    TaskResult,
    task_backends,
)
from django_pgqueue.types import OnConflict, Until

P = ParamSpec("P")
R = TypeVar("R")

if TYPE_CHECKING:
    DjangoTask = Task
else:

    class DjangoTask:
        """Makes ``DjangoTask[P, R]`` valid at run time: Django's class takes no parameters."""

        def __class_getitem__(cls, parameters):
            return Task


#: The arguments of one task run: a list of positional arguments, or a dict of keyword arguments.
Call = Sequence[Any] | Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PgQueueTask(DjangoTask[P, R], Generic[P, R]):
    """Django's Task with more options, set by :func:`task`.

    ``retry``
        a strategy of :mod:`django_pgqueue.retries`; None: the backend's, by default NoRetry()
    ``timeout``
        seconds after which a run is interrupted and counts as failed; None: the backend's
    ``expires``
        a task that has not started within this time (seconds or a timedelta) from its enqueue is
        not run, and its result is FAILED with a MessageExpired; None: it runs at any time
    ``group``
        tasks of the same group run in order, one at a time
    ``unique``
        while a task holds this key, no second one is enqueued
    ``until``, ``on_conflict``, ``max_wait``
        how long a task holds the key, and the effect of enqueueing a second task: as for ``send``

    ``group`` and ``unique`` are templates: ``{name}`` stands for an argument of the task, as text
    or as its JSON. A unique key belongs to its task: no other task can hold it.
    """

    retry: RetryStrategy | None = None
    timeout: float | None = None
    expires: float | dt.timedelta | None = None
    group: str | None = None
    unique: str | None = None
    until: Until | None = None
    on_conflict: OnConflict = "skip"
    max_wait: float | dt.timedelta | None = None

    def using(
        self,
        *,
        priority: int | None = None,
        queue_name: str | None = None,
        run_after: dt.datetime | None = None,
        backend: str | None = None,
        expires: float | dt.timedelta | None = None,
        group: str | None = None,
        unique: str | None = None,
    ) -> PgQueueTask[P, R]:
        """Return a copy of the task with other values for these options.

        >>> charge.using(priority=10, unique="once").enqueue(7, 8)
        """
        options = dict(locals())
        del options["self"]
        return replace(self, **{name: v for name, v in options.items() if v is not None})

    @property
    def claims(self) -> dict[str, Any]:
        """The options of a send that belong to ``unique``."""
        return {"until": self.until, "on_conflict": self.on_conflict, "max_wait": self.max_wait}

    def enqueue_many(self, calls: Iterable[Call]) -> list[TaskResult[P, R]]:
        """Enqueue one run of the task for each item of ``calls``, in one statement or COPY.

        An item is a list or a dict of arguments. If the unique key of a run is a duplicate, its
        result has the id of the earlier run.

        >>> email_user.enqueue_many([{"user_id": 7}, {"user_id": 8}])
        [TaskResult(...), TaskResult(...)]

        Raises the same errors as ``enqueue``. After an error PgQueueBackend has enqueued nothing.
        """
        backend: Any = self.get_backend()
        enqueue_many = getattr(backend, "enqueue_many", partial(Options.enqueue_many, backend))
        return list(enqueue_many(self, calls))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError for a name that does not exist, with the one that does."""
            advice = f". Use {TASK_METHODS[name]}" if name in TASK_METHODS else ""
            raise AttributeError(f"task has no attribute {name!r}{advice}", name=name, obj=self)

    def key(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """Return the option ``group`` or ``unique`` with these arguments filled in.

        ``unique`` has the task's path in front.
        """
        text: str | None = getattr(self, name)
        if text is None:
            return None
        if _names(text):
            first = (None,) if self.takes_context else ()
            bound = inspect.signature(self.func).bind(*first, *args, **kwargs)
            bound.apply_defaults()
            text = text.format_map({key: _keyed(each) for key, each in bound.arguments.items()})
        return f"{self.module_path}:{text}" if name == "unique" else text


@overload
def task(function: Callable[P, R], /) -> PgQueueTask[P, R]: ...


@overload
def task(
    *,
    priority: int = ...,
    queue_name: str = ...,
    backend: str = ...,
    takes_context: Literal[True],
    retry: RetryStrategy | None = ...,
    timeout: float | None = ...,
    expires: float | dt.timedelta | None = ...,
    group: str | None = ...,
    unique: str | None = ...,
    until: Until | None = ...,
    on_conflict: OnConflict = ...,
    max_wait: float | dt.timedelta | None = ...,
) -> Callable[[Callable[Concatenate[TaskContext[Any, Any], P], R]], PgQueueTask[P, R]]: ...


@overload
def task(
    *,
    priority: int = ...,
    queue_name: str = ...,
    backend: str = ...,
    takes_context: Literal[False] = ...,
    retry: RetryStrategy | None = ...,
    timeout: float | None = ...,
    expires: float | dt.timedelta | None = ...,
    group: str | None = ...,
    unique: str | None = ...,
    until: Until | None = ...,
    on_conflict: OnConflict = ...,
    max_wait: float | dt.timedelta | None = ...,
) -> Callable[[Callable[P, R]], PgQueueTask[P, R]]: ...


def task(
    function: Callable[..., Any] | None = None,
    /,
    *,
    priority: int = DEFAULT_TASK_PRIORITY,
    queue_name: str = DEFAULT_TASK_QUEUE_NAME,
    backend: str = DEFAULT_TASK_BACKEND_ALIAS,
    takes_context: bool = False,
    retry: RetryStrategy | None = None,
    timeout: float | None = None,
    expires: float | dt.timedelta | None = None,
    group: str | None = None,
    unique: str | None = None,
    until: Until | None = None,
    on_conflict: OnConflict = "skip",
    max_wait: float | dt.timedelta | None = None,
    **unknown: NoReturn,
) -> Any:
    """Turn a function into a task, like Django's ``task``, with more options.

    :class:`PgQueueTask` explains the additional options. Backends of other packages ignore them.

    ::

        @task(retry=Exponential(max_attempts=5), timeout=60, group="customer-{customer_id}")
        def charge(customer_id: int, order_id: int) -> str:
            ...

    Raises InvalidTask for invalid values.
    """

    options: dict[str, Any] = dict(locals())
    del options["function"]
    if options.pop("unknown"):
        raise unexpected(task, unknown, TASK)

    def decorate(func: Callable[..., Any]) -> PgQueueTask[..., Any]:
        # The task_class of a project's own backend may be a subclass of PgQueueTask.
        made_by = task_backends[backend].task_class
        task_class: Any = made_by if issubclass(made_by, PgQueueTask) else PgQueueTask
        made: PgQueueTask[..., Any] = task_class(func=func, run_after=None, **options)
        return made

    return decorate if function is None else decorate(function)


class Options:
    """A mixin for backends: accepts and validates the options of :class:`PgQueueTask`.

    List it before Django's backend in the bases.
    """

    task_class = PgQueueTask

    def validate_task(self, task: Task[..., Any]) -> None:
        """Validate the task as Django does, and its options too. Raises InvalidTask."""
        super().validate_task(task)  # type: ignore[misc]
        if inspect.isgeneratorfunction(task.func) or inspect.isasyncgenfunction(task.func):
            raise InvalidTask(
                f"{task.name} has a yield, so a call would only make a generator, and run none of "
                f"its lines: return a value, or nothing"
            )
        if not isinstance(task, PgQueueTask):
            return
        if task.retry is not None and not callable(getattr(task.retry, "delay", None)):
            raise InvalidTask(
                f"retry must be a strategy of django_pgqueue.retries, such as NoRetry(), not "
                f"{task.retry!r}"
            )
        try:
            for name in ("timeout", "expires"):
                if (length := getattr(task, name)) is not None:
                    arguments.duration(length, name, least=arguments.POSITIVE)
            given = (task.unique, task.until, task.max_wait)
            if given != (None, None, None) or task.on_conflict != "skip":
                # The delay is given as True: a run can get one later, by `using(run_after=...)`.
                claim(None, task.unique, task.until, task.on_conflict, True, task.max_wait)
        except InvalidArgument as error:
            raise InvalidTask(str(error)) from error
        for name in ("group", "unique"):
            _check_template(task, name, getattr(task, name))

    def enqueue_many(
        self, task: Task[..., Any], calls: Iterable[Call]
    ) -> list[TaskResult[..., Any]]:
        """Enqueue each run of a task by itself."""
        backend: Any = self
        return [backend.enqueue(task, *call_of(call)) for call in calls]


def call_of(call: Any) -> tuple[list[Any], dict[str, Any]]:
    """Split an item of ``calls`` into positional and keyword arguments."""
    if isinstance(call, Mapping):
        return [], dict(call)
    if isinstance(call, Sequence) and not isinstance(call, (str, bytes)):
        return list(call), {}
    raise InvalidTask(
        f"enqueue_many takes a list or a dict of arguments for each run, not {call!r}"
    )


def _keyed(value: Any) -> Any:
    """Return an argument in the form that a key has. Equal JSON values have equal forms.

    >>> _keyed({"b": 1.0, "a": True}), _keyed(1.0), _keyed("7")
    ('{"a":true,"b":1}', 1, '7')
    """
    value = _whole(value)
    if value is None or isinstance(value, (bool, dict, list, tuple)):
        return json.dumps(
            value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str
        )
    return value


def _whole(value: Any) -> Any:
    """Return the JSON value with ints in place of whole floats: JSON's 1 and 1.0 are equal."""
    if isinstance(value, dict):
        return {name: _whole(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_whole(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _names(template: str) -> list[str]:
    return [field for _, field, _, _ in Formatter().parse(template) if field is not None]


def _check_template(task: PgQueueTask[..., Any], name: str, template: object) -> None:
    if template is None:
        return
    if not isinstance(template, str):
        raise InvalidTask(f"{name} must be text or None, not {template!r}")
    try:
        names = _names(template)
    except ValueError as error:
        raise InvalidTask(f"{name} {template!r} is not a valid template: {error}") from error
    known = [
        parameter.name
        for parameter in inspect.signature(task.func).parameters.values()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ][1 if task.takes_context else 0 :]
    for each in names:
        if each not in known:
            raise InvalidTask(
                f"{name} {template!r}: {{{each}}} is not an argument of {task.name}, whose "
                f"arguments are {', '.join(known) or 'none'}. Write {{{{ for a brace."
            )
