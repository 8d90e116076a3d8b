"""The way of one message through the worker, from its notification to its ack.

What a reader has to know to follow a message: the functions that it passes, thread by thread.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from django_pgqueue import worker
from django_pgqueue.models import BoundQueue
from tests.waiting import until
from tests.worker.consuming import InThread

pytestmark = pytest.mark.skipif(sys.version_info < (3, 12), reason="needs sys.monitoring")

FOLDER = Path(worker.__file__).parent
DESIGN = FOLDER.parent.parent / "docs" / "design.md"
#: Each thread of the way, and the function with which it passes the message on, or has done.
THREADS = {
    "listen": "Fetcher.notified",
    "fetch": "Buffer.put",
    "work": "Settler.put",
    "settle": "announce",
    "announce": "Announcer._send",
}

Way = dict[str, dict[str, str]]


def name_of(thread: threading.Thread) -> str:
    return thread.name.removeprefix("pgqueue-").partition("-")[0]


def stack(frame: FrameType | None) -> list[CodeType]:
    """The code that runs in a frame, after all that called it."""
    return [*stack(frame.f_back), frame.f_code] if frame else []


@contextmanager
def followed() -> Iterator[Way]:
    """The functions of the worker that each thread passes, in order, with their files."""
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
    way: Way = {name: {} for name in THREADS}
    arrived: set[str] = set()

    def note(code: CodeType, thread: str) -> None:
        # A comprehension or lambda is part of its function.
        if Path(code.co_filename).parent == FOLDER and "<" not in code.co_qualname:
            way[thread].setdefault(code.co_qualname, Path(code.co_filename).name)

    def begin(code: CodeType, offset: int) -> None:
        thread = name_of(threading.current_thread())
        if thread in way and thread not in arrived:
            note(code, thread)

    def end(code: CodeType, offset: int, returned: Any) -> None:
        thread = name_of(threading.current_thread())
        if code.co_qualname == THREADS.get(thread):
            arrived.add(thread)

    # Where each thread waits.
    for thread in threading.enumerate():
        if name_of(thread) in way:
            for code in stack(sys._current_frames()[thread.ident or 0]):
                note(code, name_of(thread))
    tool = monitoring.PROFILER_ID
    monitoring.use_tool_id(tool, "way")
    monitoring.register_callback(tool, monitoring.events.PY_START, begin)
    monitoring.register_callback(tool, monitoring.events.PY_RETURN, end)
    monitoring.set_events(tool, monitoring.events.PY_START | monitoring.events.PY_RETURN)
    try:
        yield way
        until(lambda: arrived == set(THREADS))
    finally:
        monitoring.set_events(tool, 0)
        monitoring.free_tool_id(tool)


@pytest.fixture
def way(committed_orders: BoundQueue, consume: Callable[..., InThread]) -> Way:
    """The way of the second message: during the first one, threads still start."""
    run = consume(lambda message: None, max_workers=1, max_fetch_interval=30)
    committed_orders.send(1)
    until(lambda: run.subscription.counts.completed == 1)
    buffer = run.subscription.buffer
    until(lambda: buffer._idle == 1 and buffer.plan.at - time.monotonic() > 5)
    with followed() as way:
        committed_orders.send(2)
    return way


def test_a_message_passes_few_functions_in_few_files(way):
    passed = {(file, name) for functions in way.values() for name, file in functions.items()}
    files = {file for file, _ in passed}

    assert len(passed) <= 41, "\n".join(f"{t}: {list(f)}" for t, f in way.items())
    assert len(files) <= 14, sorted(files)


def test_the_design_draws_the_way_as_it_is(way):
    _, section = DESIGN.read_text(encoding="utf-8").split("### The way of one message\n")
    rows = re.findall(r"^\| (\w+) \|(.*)\|$", section.split("\n#")[0], re.MULTILINE)
    drawn = {thread: re.findall(r"`([\w.]+)`", cells) for thread, cells in rows if thread in way}

    passed = {thread: list(functions) for thread, functions in way.items()}
    assert drawn == passed, "\n".join(
        f"| {thread} | {', '.join(f'`{each}`' for each in functions)} |"
        for thread, functions in passed.items()
    )
