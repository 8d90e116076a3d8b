"""Simulates GitHub: several clients post signed webhooks over HTTP, some of them twice."""

from __future__ import annotations

import http.client
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator

from example_project.inbox.webhooks import sign

ATTEMPTS = 5


class Traffic:
    """Posts *deliveries* from *clients* threads, and every *redeliver_every*-th twice."""

    def __init__(
        self,
        port: int,
        secret: str,
        deliveries: Iterator[tuple[str, bytes]],
        clients: int = 4,
        redeliver_every: int = 10,
        faults: dict[int, str] | None = None,
    ):
        self.port = port
        self.secret = secret
        self.redeliver_every = redeliver_every
        self.counts: Counter[str] = Counter()
        self.errors: list[str] = []
        #: The planted faults by guid; *faults* has them by delivery number.
        self.faults: dict[str, str] = {}
        self._faults = faults or {}
        self._deliveries = enumerate(deliveries, start=1)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._post_all) for _ in range(clients)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Finish the current requests, and send no more."""
        self._stopping.set()
        for thread in self._threads:
            if thread.ident:
                thread.join()

    @property
    def is_done(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def _next(self) -> tuple[int, tuple[str, bytes]] | None:
        with self._lock:
            return None if self._stopping.is_set() else next(self._deliveries, None)

    def _post_all(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            while (numbered := self._next()) is not None:
                number, (event, body) = numbered
                guid = str(uuid.uuid4())
                if number in self._faults:
                    self.faults[guid] = self._faults[number]
                status = self._post(connection, guid, event, body)
                if status in (200, 202) and number % self.redeliver_every == 0:
                    self._count("redelivered")
                    if self._post(connection, guid, event, body) == 200:
                        self._count("duplicates")
                self._count("sent" if status in (200, 202) else "refused")
        finally:
            connection.close()

    def _post(
        self, connection: http.client.HTTPConnection, guid: str, event: str, body: bytes
    ) -> int | None:
        """Post a delivery, and return the answer's status. After a broken connection the same guid
        is sent again: if only the answer was lost, the second one is a duplicate.
        """
        headers = {
            "Content-Type": "application/json",
            "X-GitHub-Delivery": guid,
            "X-GitHub-Event": event,
            "X-Hub-Signature-256": sign(body, self.secret),
        }
        for attempt in range(ATTEMPTS):
            try:
                connection.request("POST", "/webhooks/github/", body, headers)
                response = connection.getresponse()
                answer = response.read()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                self._note(f"{event}: {error!r}")
                if self._stopping.is_set():
                    break
                time.sleep(0.1 * 2**attempt)
                continue
            if response.status not in (200, 202):
                self._note(f"{event}: {response.status} {answer[:200].decode(errors='replace')}")
            status: int = response.status
            return status
        return None

    def _count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1

    def _note(self, error: str) -> None:
        with self._lock:
            self.errors.append(error)
