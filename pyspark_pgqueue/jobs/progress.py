"""Show a job's progress, as a bar on a terminal or as occasional lines."""

from __future__ import annotations

import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

#: Reports progress. Arguments: the unit counted, the number done, the total.
Progress = Callable[[str, int, int], None]

_DRAW_EVERY = 0.1
_SAY_EVERY = 10.0
_WIDTH = 24


def quiet(what: str, done: int, total: int) -> None:
    """Shows nothing."""


class Bar:
    """Draws progress on a stream such as stderr. Call :meth:`clear` before printing a result.

    >>> import io; Bar(io.StringIO()).line("tasks", 3, 12, seconds=6.0)
    '[######..................]  25%  3 of 12 tasks, 18 s left'
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._what = ""
        self._started = self._next = 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if what != self._what:
            self._what, self._started = what, now
            self._next = now if self._live else now + _SAY_EVERY
        if now < self._next or total <= 0:
            return
        self._next = now + (_DRAW_EVERY if self._live else _SAY_EVERY)
        line = self.line(what, done, total, now - self._started)
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            self._write(f"\r\x1b[K{line[:width]}")
        else:
            self._write(f"{line}\n")

    def line(self, what: str, done: int, total: int, seconds: float) -> str:
        share = min(done / total, 1.0)
        filled = int(share * _WIDTH)
        left = f", {seconds / share - seconds:,.0f} s left" if share else ""
        bar = f"[{'#' * filled}{'.' * (_WIDTH - filled)}] {share:4.0%}"
        return f"{bar}  {done:,} of {total:,} {what}{left}"

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self.clear()
        self._write(f"{text}\n")

    def clear(self) -> None:
        if self._live:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


@contextmanager
def watched(spark: Any, what: str, total: int, progress: Progress) -> Iterator[None]:
    """Report how many tasks of the block's Spark jobs have ended."""
    if progress is quiet:
        yield
        return
    if not hasattr(spark, "sparkContext"):
        with _told_by_connect(spark, what, total, progress):
            yield
        return
    context, group, over = spark.sparkContext, uuid.uuid4().hex, threading.Event()
    context.setJobGroup(group, what)

    def ended() -> int:
        tracker = context.statusTracker()
        count = 0
        for job in tracker.getJobIdsForGroup(group):
            told = tracker.getJobInfo(job)
            for stage in told.stageIds if told is not None else ():
                info = tracker.getStageInfo(stage)
                count += info.numCompletedTasks if info is not None else 0
        return count

    def watch() -> None:
        while not over.wait(0.2):
            progress(what, min(ended(), total), total)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()
        for name in ("spark.jobGroup.id", "spark.job.description"):
            context.setLocalProperty(name, None)
    progress(what, total, total)


@contextmanager
def _told_by_connect(spark: Any, what: str, total: int, progress: Progress) -> Iterator[None]:
    def tell(stages: Any, *_: Any, **__: Any) -> None:
        progress(what, min(sum(stage.num_completed_tasks for stage in stages or ()), total), total)

    spark.registerProgressHandler(tell)
    try:
        yield
    finally:
        spark.removeProgressHandler(tell)
    progress(what, total, total)
