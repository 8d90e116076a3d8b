"""A task that knows how many of it run at once, in the threads of one process."""

from __future__ import annotations

import threading
import time

from django_pgqueue.tasks import task

_lock = threading.Lock()
_running: list[int] = []
#: How many ran at once, at each start.
at_once: list[int] = []


@task()
def overlap(number: int) -> None:
    with _lock:
        _running.append(number)
        at_once.append(len(_running))
    time.sleep(0.002)
    with _lock:
        _running.remove(number)
    if number % 5 == 0:
        raise ValueError("as told")
