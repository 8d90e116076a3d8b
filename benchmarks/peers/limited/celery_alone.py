"""Celery with the whole rate in one worker: "to enforce a global rate limit, you must restrict to a
given queue", which only this worker takes.
"""

from __future__ import annotations

from benchmarks.peers.limited import RATE, celery


class Worker(celery.Worker):
    limits = {"rate": f'of a task: `rate_limit="{RATE}/s"`, and one worker alone'}
    processes, threads = 1, 4
