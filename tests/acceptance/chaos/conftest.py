"""One server for all runs, a world per run, and the seed that repeats it."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from django_pgqueue.embedded.server import EmbeddedServer
from tests.acceptance.chaos.world import World
from tests.servers import new_database, one_server


@pytest.fixture(scope="session")
def chaos_server() -> Iterator[EmbeddedServer]:
    settings = {
        "fsync": "off",
        "log_min_messages": "fatal",
        # Leases stay unflushed for long, so that a server crash loses many of them.
        "wal_writer_delay": "10s",
        # A silenced client never closes its connection: only a server timeout releases its locks.
        "idle_in_transaction_session_timeout": "6s",
    }
    with one_server(settings) as server:
        new_database(server, "chaos")
        yield server


@pytest.fixture
def world(chaos_server: EmbeddedServer, tmp_path: Path) -> Iterator[World]:
    """CHAOS_SEED repeats a run, CHAOS_SCALE makes it longer, and CHAOS_UNTIL is the time, in
    seconds since the epoch, after which no run starts.
    """
    if time.time() > float(os.environ.get("CHAOS_UNTIL", "inf")):
        pytest.skip("the time is over")
    seed = int(os.environ.get("CHAOS_SEED") or random.SystemRandom().randrange(10**6))
    scale = float(os.environ.get("CHAOS_SCALE", "1"))
    print(f"CHAOS_SEED={seed} CHAOS_SCALE={scale:g}")
    world = World(chaos_server, tmp_path, seed, scale)
    yield world
    world.close()
