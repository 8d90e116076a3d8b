"""Batches whose members end in every way, and those who send and cancel them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from django.db import Error, connection, transaction

from django_pgqueue.acks import Discard, Reject, Retry
from django_pgqueue.errors import BatchSealed
from django_pgqueue.models import Batch, Message, queue
from django_pgqueue.retries import Constant

__all__ = ["OPTIONS", "acts", "arun", "run"]

OPTIONS: dict[str, Any] = {"retry": Constant(seconds=0, max_attempts=3), "max_deliveries": 50}
#: How many members wait at most.
MOST = 400
#: The longest work of a handler, in seconds.
WORK = 0.002


class Undone(Exception):
    """Rolls a sender back."""


def end(message: Message) -> None:
    """End the run of a message in one of the ways."""
    match random.randrange(10):
        case 0:
            raise Retry
        case 1:
            raise OSError("no such user")
        case 2:
            raise Reject("as told")
        case 3:
            raise Discard


def run(message: Message) -> None:
    time.sleep(random.uniform(0, WORK))
    end(message)


async def arun(message: Message) -> None:
    end(message)


def acts(name: str = "orders") -> list[Callable[[], None]]:
    """What others do beside the consumers of a queue, each again and again."""
    return [
        *[partial(_tried, _send_block, name)] * 3,
        *[partial(_tried, _send_openly, name)] * 2,
        partial(_tried, _cancel, name),
        *[partial(_tried, _count)] * 2,
    ]


def _tried(act: Callable[..., None], *args: Any) -> None:
    time.sleep(random.uniform(0, 0.02))
    try:
        act(*args)
    except Error:
        with suppress(Error):
            connection.close()  # it was cut


def _then(name: str) -> Any:
    return queue("reports").message({"of": name})


def _may_send(name: str) -> bool:
    return not queue(name).metrics().length > MOST


def _send_block(name: str) -> None:
    """Send a batch in one transaction, and sometimes roll it back."""
    if not _may_send(name):
        return
    with suppress(Undone), transaction.atomic():
        with queue(name).batch(then=_then(name)) as batch:
            batch.send("first")
            batch.send_batch([*range(random.randrange(1, 40))])
            batch.send("expires", expires=0.2)
        if random.randrange(4) == 0:
            raise Undone


def _send_openly(name: str) -> None:
    """Send to a batch that others send to as well, or begin one, or seal one."""
    found = queue(name).batches().filter(sealed_at=None).order_by("?").first()
    with suppress(BatchSealed):  # by another one, meanwhile
        if found is None or random.randrange(5) == 0:
            if _may_send(name):
                queue(name).open_batch(then=_then(name)).send("first")
        elif random.randrange(3) == 0:
            found.seal()
        else:
            found.send_batch([*range(random.randrange(1, 10))])


def _cancel(name: str) -> None:
    """Cancel a batch, or some messages."""
    if random.randrange(10) == 0:
        found = queue(name).batches().filter(done_at=None).order_by("?").first()
        if found is not None:
            found.cancel()
    queue(name).cancel([message.id for message in queue(name).peek(qty=3)])
    queue(name).delete([message.id for message in queue(name).peek(qty=1)])


def _count() -> None:
    Batch.objects.count_members(
        list(Batch.objects.filter(done_at=None).values_list("pk", flat=True)), using="default"
    )
