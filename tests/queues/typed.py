"""Read by mypy and pyright, which must find a mistake in each line marked so, and no other."""

from __future__ import annotations

from typing import Any, Literal

from psycopg import Connection
from typing_extensions import assert_type

from django_pgqueue import bare, queue
from django_pgqueue.models import Message
from django_pgqueue.operations import AlterQueue, CreateQueue
from django_pgqueue.types import Sent

Conflict = Literal["skipped", "replaced", "delayed"] | None

queue("orders").create(limit=3, retention=3600, dead_letter_queue=None)
queue("orders").create(limits=3)  # WRONG
queue("orders").create(limit="3")  # WRONG
Message.objects.create_queue("orders", rates="3/s")  # WRONG
CreateQueue("orders", rate="3/s", unlogged=True)
CreateQueue("orders", rate=3)  # WRONG
AlterQueue("orders", rate="3/s", before={"rate": None})
AlterQueue("orders", unlogged=True)  # WRONG

orders = queue("orders")
assert_type(orders.send({"order": 7}, unique="7").conflict, Conflict)
assert_type(orders.send({"order": 7}), Sent)
assert_type(orders.send_batch([7], unique=["7"])[0].conflict, Conflict)
assert_type(Message.objects.send("orders", 7, unique="7"), Sent)
assert_type(Message.objects.send_batch("orders", [7]), list[Sent])
assert_type(Message.objects.publish("orders.paid", 7), dict[str, Sent])
assert_type(Message.objects.publish_batch("orders.paid", [7]), dict[str, list[Sent]])
number: int = orders.send(7)
unknown = orders.send(7).conflicts  # WRONG
orders.send(7, uniqe="7")  # WRONG
orders.send(7, on_conflict="skipped")  # WRONG


async def send() -> None:
    assert_type((await orders.asend(7, unique="7")).conflict, Conflict)
    assert_type(await orders.asend_batch([7]), list[Sent])
    assert_type(await Message.objects.apublish("orders.paid", 7), dict[str, Sent])
    assert_type(await Message.objects.apublish_batch("orders.paid", [7]), dict[str, list[Sent]])
    await orders.asend(7, uniqe="7")  # WRONG


def send_bare(connection: Connection[Any]) -> None:
    assert_type(bare.send(bare.open_queue(connection, "orders"), 7), Sent)
