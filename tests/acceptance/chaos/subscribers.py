"""A process of senders, readers or others around subscriptions, which outlives its server.

    python -m tests.acceptance.chaos.subscribers STEP NAME URL_FILE NOTES SEED STOP

It connects to the URL that the file has at that moment, again and again, until there is a server.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psycopg

from django_pgqueue import bare
from tests.promises.full_speed import Step, Worker
from tests.subscriptions import players

STEPS: dict[str, Callable[..., object]] = {
    "send": players.send_late,
    "consume": players.consume_source,
    "throw away": players.throw_away,
    "read": players.read_subscription,
}


class Survivor(Worker):
    """A worker that waits for a server."""

    def _connect(self) -> None:
        while True:
            try:
                url = Path(self._url).read_text()
                self.connection = psycopg.connect(url, autocommit=True, connect_timeout=5)
                self.queue = bare.open_queue(self.connection, self._name)
                return
            except psycopg.OperationalError:
                time.sleep(0.05)


def main() -> None:
    kind, name, url, notes, seed, stop = sys.argv[1:]
    step: Step = partial(STEPS[kind], name=name) if kind == "read" else STEPS[kind]
    worker = Survivor(url, "orders", Path(notes), int(seed), "SELECT")
    try:
        worker.run(step, Path(stop), True)
    finally:
        worker.close()


if __name__ == "__main__":
    main()
