"""What the shop sends."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.db import transaction

from django_pgqueue import queue
from django_pgqueue.types import Sent
from shop.models import Order


def place(number: str, customer: str = "ann") -> Order:
    with transaction.atomic():
        order = Order.objects.create(number=number, customer=customer)
        queue("payments").send({"order": order.pk})
        queue("reminders").send({"order": order.pk}, delay=dt.timedelta(days=3))
        if not number:
            raise ValueError("an order has a number")
    return order


def ask_for_receipt(order: Order) -> Sent:
    return queue("receipts").send({"order": order.pk}, unique=f"receipt-{order.pk}", until="done")


def locate(addresses: list[str]) -> None:
    with transaction.atomic():
        queue("geocoding").send_batch([{"address": address} for address in addresses])


def ship(order: Order) -> int:
    return queue("shipping").send({"order": order.pk}, group=f"customer {order.customer}")


def quote(order: Order) -> int:
    return queue("quotes").send({"order": order.pk})


def cancel_quote(number: int) -> bool:
    return queue("quotes").cancel(number) == [number]


def quoted(number: int) -> Any:
    return queue("quotes").result(number)
