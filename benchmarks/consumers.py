"""Our handlers, run by ``manage.py runconsumer`` in scenarios with workers."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.notes import note
from django_pgqueue import consumer

#: Modes that have a batch handler too.
BATCHES = ("drain",)


@consumer("drain")
def nothing(message: Any) -> None:
    """A handler that does nothing."""


@consumer("drain-batch", batch=True)
def nothing_at_once(messages: list[Any]) -> None:
    """A batch handler that does nothing."""


@consumer("wait")
def wait_10ms(message: Any) -> None:
    time.sleep(0.01)


@consumer("drain-20ms")
def wait_20ms(message: Any) -> None:
    time.sleep(0.02)


@consumer("drain-50ms")
def wait_50ms(message: Any) -> None:
    time.sleep(0.05)


@consumer("ordered")
def nothing_in_order(message: Any) -> None:
    """A handler that does nothing, for the messages of FIFO groups."""


@consumer("latency")
def note_the_delay(message: Any) -> None:
    note(message.body["sent"])
