"""Tasks as seen by type checkers: ``test_typing.py`` checks this file. It is never run."""

from __future__ import annotations

from typing import Any

from django.tasks import TaskContext, TaskResult
from typing_extensions import assert_type

from django_pgqueue.retries import Exponential
from django_pgqueue.tasks import PgQueueTask, task


@task
def plain(number: int) -> str:
    return str(number)


@task(retry=Exponential(max_attempts=5), timeout=60, group="customer-{customer_id}", priority=3)
def charge(customer_id: int, order_id: int = 1) -> str:
    return f"{customer_id}/{order_id}"


@task(takes_context=True, unique="{url}")
def load(context: TaskContext[Any, Any], url: str) -> int:
    return context.attempt


assert_type(plain.enqueue(1).return_value, str)
assert_type(charge.enqueue(7, order_id=8).return_value, str)
assert_type(charge.using(priority=10, expires=60, group="vip").enqueue(7).return_value, str)
assert_type(load.enqueue("https://example.org").return_value, int)
assert_type(load.get_result("7").return_value, int)
for each in charge.enqueue_many([[7], {"customer_id": 7}]):
    assert_type(each.return_value, str)


async def enqueue() -> None:
    assert_type((await charge.aenqueue(7)).return_value, str)


def retries_of(each: PgQueueTask[..., Any]) -> object:
    return each.retry


retries_of(charge)

# One mistake per line.
charge.enqueue("seven")  # WRONG
charge.enqueue(7, order=8)  # WRONG
load.enqueue(7)  # WRONG
charge.using(prio=3)  # WRONG
task(retries=3)  # WRONG
task(timeout="soon")  # WRONG
wrong: TaskResult[..., int] = charge.enqueue(7)  # WRONG
