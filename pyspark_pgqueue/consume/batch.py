"""A batch of a stream that consumes queues, as an offset and as leased messages."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from django_pgqueue.engine.open_queue import OpenQueue
from django_pgqueue.types import Receipt
from pyspark_pgqueue.consume.taking import Taken
from pyspark_pgqueue.errors import InvalidOption


@dataclass(frozen=True)
class Batch:
    """An offset: a batch's number and its deliveries."""

    number: int = 0
    deliveries: tuple[Taken, ...] = ()
    system: str = ""
    stream: str = ""
    #: The message that made an earlier batch fail may be among the queue's next ``suspects`` ones.
    suspects: int = 0

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> Batch:
        """Parse an offset from a checkpoint."""
        if "n" not in value or "taken" not in value:
            raise InvalidOption(
                "The checkpoint belongs to a stream of the archive. A stream that consumes a queue "
                "needs a checkpoint of its own."
            )
        deliveries = tuple(
            Taken(int(each["queue"]), tuple(each["leases"]), bool(each["groups"]))
            for each in value["taken"]
        )
        stream, suspects = str(value.get("stream", "")), int(value.get("suspects", 0))
        return cls(int(value["n"]), deliveries, str(value["sys"]), stream, suspects)

    def as_dict(self) -> dict[str, Any]:
        taken = [
            {"queue": each.queue_id, "groups": each.grouped, "leases": list(each.parts)}
            for each in self.deliveries
        ]
        offset = {"n": self.number, "taken": taken, "sys": self.system, "stream": self.stream}
        return {**offset, "suspects": self.suspects}


class Held(NamedTuple):
    """The deliveries of one queue in a batch, in the order in which they are served."""

    queue: OpenQueue
    grouped: bool
    timeout: dt.timedelta
    receipts: list[Receipt]
