"""Read by mypy and pyright, which must find a mistake in each line marked so, and no other."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, TypedDict

from typing_extensions import assert_type

from django_pgqueue import consumer
from django_pgqueue.models import Message
from django_pgqueue.worker.context import Context


class Colour(Enum):
    RED = "red"


@dataclass
class Order:
    number: int


class Address(TypedDict):
    street: str


@consumer("orders")
def take_message(message: Message) -> int:
    return message.id


@consumer("orders", retry=None, timeout=5)  # WRONG
def take_with_a_mistake(message: Message) -> None: ...


@consumer("orders", timeout=5)
async def take_order(order: Order, message: Message, context: Context) -> str:
    return context.queue


@consumer("orders", batch=True, batch_size=50)
def take_messages(messages: list[Message]) -> None: ...


@consumer("orders", batch=True)
async def take_orders(orders: list[Order], message: list[Message]) -> list[int]:
    return [order.number for order in orders]


def take_any(body: Any) -> None: ...
def take_dict(body: dict[str, Any]) -> None: ...
def take_typed_dict(body: Address) -> None: ...
def take_keyed(body: dict[int, str]) -> None: ...
def take_union(body: Order | Address | None) -> None: ...
def take_list(body: list[dict[str, Any]]) -> None: ...
def take_days(body: list[dt.date]) -> None: ...
def take_colours(body: set[Colour]) -> None: ...
def take_number(body: int) -> None: ...
def take_two(bank: str, order: Order) -> None: ...
def take_dicts(bodies: list[dict[str, Any]], context: Context) -> None: ...
def take_nothing() -> None: ...


class Charging:
    def __call__(self, message: Message) -> None: ...


assert_type(take_message(Message(body={})), int)
assert_type(consumer("orders")(take_dict)({}), None)
consumer("orders")(take_any)
consumer("orders")(take_typed_dict)
consumer("orders")(take_keyed)
consumer("orders")(take_union)
consumer("orders")(take_list)
consumer("orders")(take_days)
consumer("orders")(take_colours)
consumer("orders")(Charging())
consumer("orders")(partial(take_two, "bank"))
consumer("orders", batch=False)(lambda message: None)
consumer("orders", batch=True)(take_dicts)
consumer("orders", batch=True)(take_any)

# One mistake per line.
consumer("orders", batch=True)(take_message)  # WRONG
consumer("orders", batch=True)(take_dict)  # WRONG
consumer("orders")(take_messages)  # WRONG
consumer("orders", batch=False)(take_messages)  # WRONG
consumer("orders")(take_number)  # WRONG
consumer("orders")(take_nothing)  # WRONG
consumer("orders", batches=True)  # WRONG
