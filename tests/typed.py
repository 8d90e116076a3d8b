"""Read by mypy and pyright, which must find a mistake in each line marked so, and no other."""

from __future__ import annotations

from typing_extensions import assert_type

from django_pgqueue.models import BoundQueue, Message, Queue, Schedule
from django_pgqueue.testing import MakeQueue, assert_enqueued, drain
from django_pgqueue.testing.factories import MessageFactory, QueueFactory, ScheduleFactory

assert_type(QueueFactory(name="orders"), Queue)
assert_type(QueueFactory.create_batch(2), list[Queue])
assert_type(MessageFactory(queue__name="orders", body={"order": 7}), Message)
assert_type(MessageFactory.sent(100), list[Message])
assert_type(ScheduleFactory(cron="0 4 * * *"), Schedule)
unknown = MessageFactory(archived=True).bodies  # WRONG


def test_orders(make_queue: MakeQueue) -> None:
    orders = make_queue("orders", rate="10/s", dead_letter_queue="dead")
    assert_type(orders, BoundQueue)
    assert_type(drain("orders", lambda message: None), list[Message])
    assert_type(assert_enqueued("orders", count=1), list[Message])
    make_queue("orders", rates="10/s")  # WRONG
    make_queue("orders", limit="3")  # WRONG
