"""What a handler does with its message, for actors: steps, notes and waits."""

from __future__ import annotations

from django_pgqueue import signal
from django_pgqueue.acks import Waiting
from django_pgqueue.errors import TimedOut
from django_pgqueue.models import Message, queue
from tests.app.models import Order

__all__ = [
    "DOING",
    "again",
    "atomic",
    "leased",
    "note",
    "orders_by",
    "plain",
    "send_signal",
    "wait",
]


def leased(name: str = "orders", qty: int = 1) -> Message:
    """The first of the messages that a read leases."""
    return queue(name).read(qty=qty)[0]


def again(message: Message) -> Message:
    """The next delivery of a message whose lease has expired."""
    queue(message.queue_name).set_vt(message.id, 0)
    [found] = [each for each in queue(message.queue_name).read(qty=50) if each.id == message.id]
    return found


def plain(message: Message, by: str) -> str:
    """Do a step that makes an order, which shows each call that was not rolled back."""
    return str(message.step("order", _order, by))


def atomic(message: Message, by: str) -> str:
    return str(message.step("order", _order, by, atomic=True))


def note(message: Message, by: str) -> str:
    message.note(by, flush=True)
    return by


def wait(message: Message, timeout: float = 3600) -> str:
    """Wait for a signal; returns its value, "timed out", or "waits"."""
    try:
        return str(message.wait_for("paid:7", timeout=timeout))
    except TimedOut:
        return "timed out"
    except Waiting:
        return "waits"


def send_signal(value: str) -> int:
    return signal("paid:7", value)


#: Ways to store something, and the table where it is.
DOING = {
    "a step": (plain, "pgqueue_step"),
    "an atomic step": (atomic, "pgqueue_step"),
    "a note": (note, "pgqueue_note"),
}


def _order(by: str) -> str:
    Order.objects.create(number=by)
    return by


def orders_by() -> list[str]:
    """Who has made the orders, in their order."""
    return list(Order.objects.order_by("pk").values_list("number", flat=True))
