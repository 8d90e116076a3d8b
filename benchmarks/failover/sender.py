"""Sends messages one by one until the file STOP exists.

python -m benchmarks.failover.sender NAME STOP
"""

from __future__ import annotations

import os
import sys
import time
from itertools import count
from pathlib import Path

import django

from benchmarks.notes import note

#: Seconds between two messages, and between two tries after an error.
PAUSE = 0.005
RETRY = 0.02


def main(name: str, stop: Path) -> None:
    django.setup()
    from django.db import Error, connection

    from django_pgqueue import queue

    for number in count():
        if stop.exists():
            return
        op = f"{name}-{number}"
        try:
            queue("failover-transactional" if number % 2 else "failover-plain").send({"op": op})
            note("sent", op, time.monotonic(), os.getpid())
            time.sleep(PAUSE)
        except Error:
            # The send's outcome is unknown. The next connection finds the writable server.
            note("unknown", op, time.monotonic(), os.getpid())
            connection.close()
            time.sleep(RETRY)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
