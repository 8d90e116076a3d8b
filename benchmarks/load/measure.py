"""Runs a cell: a process with all connections, a look at the server from outside, and the figures
of both halves.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from psycopg import sql

from benchmarks import database
from benchmarks.load.observe import CLIENTS, SERVER, Observer, Reading
from benchmarks.load.plan import Cell, moments
from benchmarks.load.systems import System
from benchmarks.open_loop import percentile
from benchmarks.payloads import Payload

__all__ = ["figures", "measure"]

START_SECONDS = 120
#: The seconds after the end until a connection must have finished its turn.
LATE_SECONDS = 60

Turn = list[float]


def measure(
    cell: Cell, system: System, payload: Payload, observer: Observer, *, rate: float,
    seconds: float, listeners: int,
) -> dict[str, Any]:  # fmt: skip
    """The figures of the two halves, by their names."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        directory = Path(name)
        plan = {
            "system": cell.system,
            "seconds": seconds,
            "due": moments(rate, seconds, cell.connections),
            "bodies": str(directory / "bodies"),
            "turns": str(directory / "turns"),
        }
        (directory / "bodies").write_text(json.dumps(payload.bodies))
        (directory / "plan").write_text(json.dumps(plan))
        stack.enter_context(listening(system.channel, listeners))
        process = stack.enter_context(client(system, directory))
        stack.enter_context(observer.sampling())
        start = time.monotonic() + 0.2
        assert process.stdin
        process.stdin.write(f"{start}\n")
        process.stdin.flush()
        readings = []
        for part in (0, 0.5, 1):
            time.sleep(max(start + part * seconds - time.monotonic(), 0))
            if part == 0.5:
                stack.enter_context(held_snapshot())
            readings.append(observer.read(process.pid))
        wait(process, directory)
        turns = json.loads((directory / "turns").read_text())
    due = sorted(moment for connection in plan["due"] for moment in connection)
    return {
        half: figures(turns, due, before, after, start, seconds)
        for half, (before, after) in zip(("plain", "snapshot"), pairwise(readings), strict=True)
    }


@contextmanager
def client(system: System, directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Start the process with the connections, and wait until all are warm."""
    with (directory / "log").open("w") as log:
        process = subprocess.Popen(
            [*system.command(), str(directory / "plan")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, **system.environment()},
            start_new_session=True,
        )
        try:
            assert process.stdout
            ready, _, _ = select.select([process.stdout], [], [], START_SECONDS)
            if not ready or process.stdout.readline() != "ready\n":
                raise failed(directory)
            yield process
        finally:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe:
                    pipe.close()


def wait(process: subprocess.Popen[str], directory: Path) -> None:
    try:
        code = process.wait(LATE_SECONDS)
    except subprocess.TimeoutExpired:
        code = 1
    if code:
        raise failed(directory)


def failed(directory: Path) -> RuntimeError:
    said = (directory / "log").read_text().strip()[-2000:]
    return RuntimeError(f"the client failed: {said or 'it did not answer in time'}")


@contextmanager
def listening(channel: str, number: int) -> Iterator[None]:
    """Connections that listen as a consumer's does, and a thread that reads what comes."""
    with ExitStack() as stack:
        connections = [stack.enter_context(database.connect()) for _ in range(number)]
        for connection in connections:
            connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        stopped = threading.Event()
        reader = threading.Thread(target=read_all, args=(connections, stopped), daemon=True)
        reader.start()
        try:
            yield
        finally:
            stopped.set()
            reader.join()


def read_all(connections: list[Any], stopped: threading.Event) -> None:
    """Read notifications: unread ones fill the socket, and then the server waits."""
    by_socket = {connection.fileno(): connection.pgconn for connection in connections}
    while not stopped.is_set():
        for socket in select.select([*by_socket], [], [], 0.2)[0]:
            by_socket[socket].consume_input()
            while by_socket[socket].notifies():
                pass


@contextmanager
def held_snapshot() -> Iterator[None]:
    with database.connect() as holder:
        holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT pg_current_xact_id()")
        yield


def figures(
    connections: list[list[Turn]], due: list[float], before: Reading, after: Reading, start: float,
    seconds: float,
) -> dict[str, Any]:  # fmt: skip
    """The figures of the time between two readings.

    connections   the turns of each: when it was due, its start and its end, and its empty reads
    due           all moments of the schedules
    """
    turns = [turn for connection in connections for turn in connection]
    began, ended = max(before.moment - start, 0.0), min(after.moment - start, seconds)
    ends = sorted(turn[2] for turn in turns if began <= turn[2] < ended)
    done = {turn[0]: turn[2] - turn[0] for turn in turns}
    of_half = [moment for moment in due if began <= moment < ended]
    # A turn that never ended has waited until the end.
    delays = [1000 * done.get(moment, seconds - moment) for moment in of_half]
    if not ends or not delays:
        raise RuntimeError("no turn ended")
    last_fifth = ended - (ended - began) / 5
    asked = sum(moment >= last_fifth for moment in of_half)
    waits = after.waits - before.waits
    found = {
        "messages": len(ends),
        "messages/s": len(ends) / (ended - began),
        "ms, p50": percentile(delays, 50),
        "ms, p99": percentile(delays, 99),
        "ms, stall": 1000 * max(b - a for a, b in pairwise([began, *ends, ended])),
        "% at the end": 100 * sum(end >= last_fifth for end in ends) / max(asked, 1),
        "log bytes": (after.wal - before.wal) / len(ends),
        "flushes": (after.flushes - before.flushes) / len(ends),
        "ms, late start": late_start(connections, began, ended),
        "client µs": 1e6 * (after.client - before.client) / len(ends),
        "empty reads": sum(turn[3] for turn in turns if began <= turn[2] < ended) / len(ends),
        "server busy": busy(before, after, SERVER),
        "client busy": busy(before, after, CLIENTS),
        "waits": {
            event: count / waits.total() for event, count in waits.most_common(5)
        },
    }  # fmt: skip
    if after.server_ns:
        found["server µs"] = (after.server_ns - before.server_ns) / 1000 / len(ends)
    return found


def late_start(turns: list[list[Turn]], began: float, ended: float) -> float:
    """The p99 of how late turns began although their connection was free, in milliseconds."""
    late = [
        1000 * (now[1] - max(now[0], before[2]))
        for connection in turns
        for before, now in pairwise([[0.0] * 4, *connection])
        if began <= now[1] < ended
    ]
    return percentile(late, 99) if late else 0.0


def busy(before: Reading, after: Reading, core: int) -> float:
    """The share of a core's time that was used."""
    if len(after.busy) <= core:
        return 0.0
    used, total = (b - a for a, b in zip(before.busy[core], after.busy[core], strict=True))
    return used / total if total else 0.0
