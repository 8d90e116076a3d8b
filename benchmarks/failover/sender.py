"""Sends messages one by one until the file FAILOVER_NOTES/stop exists.

python -m benchmarks.failover.sender NAME
"""

from __future__ import annotations

import os
import sys
import time
from itertools import count
from pathlib import Path

import django

from benchmarks.failover.notes import note

#: Seconds between two messages, and between two tries after an error.
PAUSE = 0.005
RETRY = 0.02


def main(name: str) -> None:
    django.setup()
    from django.db import Error, connection

    from django_pgqueue import queue

    stop = Path(os.environ["FAILOVER_NOTES"]) / "stop"
    for number in count():
        if stop.exists():
            return
        op = f"{name}-{number}"
        try:
            queue("transactional" if number % 2 else "plain").send({"op": op})
            note("sent", op)
            time.sleep(PAUSE)
        except Error:
            # The send's outcome is unknown. The next connection finds the writable server.
            note("unknown", op)
            connection.close()
            time.sleep(RETRY)


if __name__ == "__main__":
    main(sys.argv[1])
