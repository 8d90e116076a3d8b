"""What the shop's workers do."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

from django_pgqueue import consumer, schedule
from django_pgqueue.acks import Reject
from django_pgqueue.models import Message
from django_pgqueue.retries import Exponential
from django_pgqueue.worker.context import Context
from shop.models import Mail, Order


@dataclass
class ForOrder:
    order: int


class BankIsClosed(Exception):
    pass


@consumer("payments", retry=Exponential(first=60, max_attempts=3, jitter=True))
def charge(payment: ForOrder, context: Context) -> None:
    order = Order.objects.get(pk=payment.order)
    if order.customer == "mallory":
        raise Reject("the card is stolen")
    if order.customer == "late" and context.attempt < 3:
        raise BankIsClosed
    Order.objects.filter(pk=order.pk).update(note="charged")


@consumer("reminders")
def remind(message: Message) -> None:
    Mail.objects.create(text=f"How was order {message.body['order']}?")


@consumer("receipts")
def write_receipt(body: dict[str, Any]) -> None:
    Mail.objects.create(text=f"Receipt for order {body['order']}")


@consumer("geocoding", max_workers=8, timeout=20)
def look_up(body: dict[str, str]) -> None:
    Mail.objects.create(text=body["address"])


@consumer("shipping")
def hand_over(shipment: ForOrder) -> None:
    order = Order.objects.get(pk=shipment.order)
    if not order.note:
        raise LookupError("not packed yet")
    Mail.objects.create(text=f"{order.number} is on its way")


@consumer("mails", batch=True, batch_size=50)
async def deliver(messages: list[Message]) -> None:
    await Mail.objects.abulk_create(Mail(text=message.body) for message in messages)


@schedule(every=dt.timedelta(days=1), body={"report": "sales"})
@consumer("reports")
def report(body: dict[str, str]) -> None:
    Mail.objects.create(text=f"The {body['report']} of today")


@consumer("quotes", keep_result=True)
def calculate(request: ForOrder) -> dict[str, int]:
    return {"order": request.order, "cents": 500}
