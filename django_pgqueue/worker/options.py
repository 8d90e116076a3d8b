"""How a consumer process runs: what ``runconsumer`` takes on its command line."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Options"]


@dataclass(frozen=True)
class Options:
    """Times are in seconds, memory in bytes; None means no limit, or the handler's own."""

    queues: tuple[str, ...] = field(default=())
    workers: int | None = None
    batch: int | None = None
    drain: bool = False
    listen: bool = True
    graceful_timeout: float = 30.0
    flush_interval: float = 0.005
    heartbeat: float = 2.0
    dead_after: float = 12.0
    #: How long one of the loops waits for the database before it takes the connection for dead.
    database_timeout: float = 30.0
    max_messages: int | None = None
    max_runtime: float | None = None
    max_memory: int | None = None
    health_port: int | None = None
