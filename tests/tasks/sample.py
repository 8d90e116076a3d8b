"""Tasks for the tests."""

from __future__ import annotations

import os
import threading
from typing import Any

from django_pgqueue import queue
from django_pgqueue.acks import Retry
from tests.tasks.framework import TaskContext, task

#: The calls, in the order in which they ran.
ran: list[Any] = []
begun = threading.Event()
go = threading.Event()


@task()
def noop(*args: Any, **kwargs: Any) -> None:
    return None


@task
def add(one: int, two: int = 0) -> int:
    ran.append((one, two))
    return one + two


@task()
async def add_async(one: int, two: int = 0) -> int:
    ran.append((one, two))
    return one + two


@task()
def fail(text: str = "no such customer") -> None:
    raise ValueError(text)


@task()
async def fail_async() -> None:
    raise ValueError("no such customer")


@task()
def fail_in_two() -> None:
    raise ValueError(ValueError("This task failed"))


@task()
def leave() -> None:
    raise SystemExit("enough")


@task()
def die() -> None:
    os._exit(1)


@task()
def give_an_object() -> Any:
    return object()


@task()
def give_a_coroutine() -> Any:
    return fail_async.func()


@task()
def give(value: Any) -> Any:
    ran.append(value)
    return value


@task(takes_context=True)
def own_id(context: TaskContext) -> str:
    return context.task_result.id


@task(takes_context=True)
def second_time_lucky(context: TaskContext) -> dict[str, Any]:
    if context.attempt == 1:
        raise Retry(0, "not yet")
    result = context.task_result
    return {"attempt": context.attempt, "status": result.status, "errors": len(result.errors)}


CALLS: list[str] = []


@task(takes_context=True)
def in_steps(context: Any, order: int) -> Any:
    """Does a step and a note, and waits for a signal."""
    receipt = context.message.step("charge", _charge, order)
    context.message.note({"charged": order}, flush=True)
    return [receipt, context.message.wait_for(f"paid:{order}", timeout="1d")]


def _charge(order: int) -> str:
    CALLS.append("charge")
    return f"r-{order}"


@task()
def double_keys(key: Any) -> Any:
    return {key: key * 2}


@task()
def send_on(queue_name: str, body: Any) -> None:
    queue(queue_name).send(body)


@task()
def hold() -> str:
    begun.set()
    go.wait(30)
    return "held"


not_a_task = 7


def plain() -> None:
    return None
