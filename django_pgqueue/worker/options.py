"""The options of a consumer process, as ``runconsumer`` takes them."""

from __future__ import annotations

from dataclasses import dataclass

from django_pgqueue.tables.process import DEAD_AFTER


@dataclass(frozen=True)
class Options:
    """A process's options, in seconds and bytes. None: no limit, or the handler's own value."""

    workers: int | None = None
    batch: int | None = None
    drain: bool = False
    listen: bool = True
    graceful_timeout: float = 30.0
    flush_interval: float = 0.005
    heartbeat: float = 2.0
    dead_after: float = DEAD_AFTER
    #: A connection that is silent for longer counts as broken.
    database_timeout: float = 30.0
    max_messages: int | None = None
    max_runtime: float | None = None
    max_memory: int | None = None
    health_port: int | None = None
    health_host: str = "127.0.0.1"
