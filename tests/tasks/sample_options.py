"""Tasks with our own options."""

from __future__ import annotations

import time
from typing import Any

from django_pgqueue.retries import Constant
from django_pgqueue.tasks import PgQueueTask, task
from tests.tasks.framework import TaskContext
from tests.tasks.sample import ran


@task(retry=Constant(seconds=0, max_attempts=3))
def stubborn() -> None:
    raise ValueError("again")


@task(retry=Constant(seconds=0, max_attempts=3), takes_context=True)
def third_time_lucky(context: TaskContext) -> int:
    if context.attempt < 3:
        raise ValueError(f"attempt {context.attempt}")
    return context.attempt


class Counted(PgQueueTask[Any, Any]):
    """A project's own class of tasks, which adds to each call."""

    def call(self, *args: Any, **kwargs: Any) -> Any:
        return super().call(*args, **kwargs) + 100


def _one() -> int:
    return 1


one_more = Counted(func=_one)
one_more.func.__qualname__ = "one_more"


@task(timeout=0.2)
def endless() -> None:
    while True:
        time.sleep(0.01)


@task(group="customer-{customer_id}", unique="{customer_id}/{order_id}")
def charge(customer_id: int, order_id: int = 1) -> None:
    ran.append((customer_id, order_id))


@task(unique="{customer_id}/{order_id}", until="done")
def refund(customer_id: Any, order_id: Any = 1) -> None:
    ran.append((customer_id, order_id))


def generate() -> Any:
    yield 1


async def agenerate() -> Any:
    yield 1


@task(group="all", takes_context=True)
def in_line(context: Any, number: int) -> None:
    ran.append(number)
