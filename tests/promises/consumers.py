"""Consumers of every kind, in threads of the test."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from django_pgqueue.acks import Retry
from django_pgqueue.handlers import Handler
from django_pgqueue.models import Message
from django_pgqueue.retries import Constant
from tests.promises.full_speed import Journal

__all__ = ["KINDS", "handler_of"]

#: The options of each kind of handler.
KINDS: dict[str, dict[str, Any]] = {
    "ACK": {"ack_policy": "ACK"},
    "ACK_FIRST": {"ack_policy": "ACK_FIRST"},
    "NACK_ON_ERROR": {"ack_policy": "NACK_ON_ERROR"},
    "REJECT_ON_ERROR": {"ack_policy": "REJECT_ON_ERROR"},
    "MANUAL": {"ack_policy": "MANUAL"},
    "TRANSACTIONAL": {"ack_policy": "TRANSACTIONAL"},
    "locked": {"locked": True},
    "batch": {"batch": True, "batch_size": 10},
    "TRANSACTIONAL batch": {"ack_policy": "TRANSACTIONAL", "batch": True, "batch_size": 10},
    "async": {"max_workers": 10},
}
AGAIN = Constant(seconds=0, max_attempts=10_000)


def handler_of(
    kind: str,
    journal: Journal,
    *,
    effect: Callable[[Message], object] = lambda message: None,
    ways: Sequence[str] = ("return", "return", "raise", "retry"),
    work: float = 0.002,
    **options: Any,
) -> Handler:
    """A handler that notes each run, works a while, has its effect, and ends in one of the ways."""
    draw = random.Random(kind)

    def begin(message: Message) -> None:
        journal.note(
            "read",
            id=message.id,
            read_ct=message.read_ct,
            read_at=message.read_at,
            group=message.group_key,
            n=message.body,
        )

    def end(message: Message) -> None:
        effect(message)
        pk, read_ct, read_at = message.receipt
        journal.note("ends", way="handled", id=pk, read_ct=read_ct, read_at=read_at)

    def conclude(message: Message) -> None:
        way = draw.choice(ways)
        if way == "raise":
            raise ValueError("as told")
        if way == "retry":
            raise Retry(0)
        if kind == "MANUAL":
            message.ack()

    def run(message: Message) -> None:
        begin(message)
        time.sleep(draw.uniform(0, work))
        end(message)
        conclude(message)

    def run_batch(messages: list[Message]) -> None:
        for message in messages:
            begin(message)
        time.sleep(draw.uniform(0, work))
        for message in messages:
            end(message)
        conclude(messages[0])

    async def run_async(message: Message) -> None:
        begin(message)
        await asyncio.sleep(draw.uniform(0, work))
        end(message)
        conclude(message)

    function = run_async if kind == "async" else run_batch if "batch" in kind else run
    return Handler(
        "orders", function, **{"retry": AGAIN, "max_deliveries": 10_000, **KINDS[kind], **options}
    )
