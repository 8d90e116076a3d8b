"""Extends the leases of a batch while Spark works on it."""

from __future__ import annotations

import threading
import warnings
from dataclasses import replace

import psycopg

from django_pgqueue.engine.settle.settling import hold
from pyspark_pgqueue.consume.batch import Held
from pyspark_pgqueue.source.stream import runner

#: Number of times that a lease is extended per visibility timeout.
EXTENSIONS = 3


class Keeper(threading.Thread):
    """Extends leases for as long as the process lives."""

    def __init__(self, url: str) -> None:
        super().__init__(name="pgqueue leases", daemon=True)
        self.url = url
        self._held: list[Held] = []
        self._every = 1.0
        self._over = False
        self._changed = threading.Event()
        # Held during an extension. keep([]) waits for it, so that no settlement writes the same
        # rows meanwhile.
        self._busy = threading.Lock()

    def keep(self, held: list[Held]) -> None:
        """Extend exactly these leases from now on."""
        with self._busy:
            self._held = held
            timeouts = (each.timeout.total_seconds() for each in held)
            self._every = min(timeouts, default=3600.0) / EXTENSIONS
        self._changed.set()

    def _extend(self) -> None:
        with self._busy:
            if self._held:
                opened = runner(self.url)
                with opened.session:
                    for queue, _, timeout, receipts in self._held:
                        hold(replace(queue, runner=opened), receipts, timeout)

    def run(self) -> None:
        while not self._over:
            if self._changed.wait(self._every):
                self._changed.clear()
                continue
            try:
                self._extend()
            except psycopg.Error as error:
                warnings.warn(
                    f"Leases could not be extended ({error}). If this lasts until the visibility "
                    f"timeout, other readers may get the messages too. Check the connection to the "
                    f"database.",
                    stacklevel=2,
                )

    def end(self) -> None:
        self._over = True
        self._changed.set()
