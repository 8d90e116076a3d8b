"""Shows the progress of long work: a bar on a terminal, otherwise a line every ten seconds."""

from __future__ import annotations

import shutil
import time

from django.core.management.base import OutputWrapper

_DRAW_EVERY = 0.1
_SAY_EVERY = 10.0
_WIDTH = 24


class ProgressBar:
    """A context manager that shows progress, and removes the bar at the end."""

    def __init__(self, out: OutputWrapper, verb: str) -> None:
        self._out = out
        self._verb = verb
        self._live = out.isatty()
        self._started = time.monotonic()
        self._next = self._started + (0.0 if self._live else _SAY_EVERY)

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *error: object) -> None:
        if self._live:
            self._write("\r\x1b[K", ending="")

    def show(self, done: int, total: int | None = None, share: float | None = None) -> None:
        """Show ``done`` finished items, with a bar if ``total`` or ``share`` is known.

        ``share`` is the finished part of the work, from 0 to 1.
        """
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (_DRAW_EVERY if self._live else _SAY_EVERY)
        if share is None and total:
            share = done / total
        line = self._line(done, total, share, now - self._started)
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            self._write(f"\r\x1b[K{line[:width]}", ending="")
        else:
            self._write(line)

    def _line(self, done: int, total: int | None, share: float | None, seconds: float) -> str:
        of = f" of {total:,}" if total else ""
        line = f"{done:,}{of} {self._verb}, {done / max(seconds, 1e-6):,.0f}/s"
        if share is None:
            return line
        share = min(share, 1.0)
        filled = int(share * _WIDTH)
        left = seconds / share - seconds if share else 0.0
        bar = f"[{'#' * filled}{'.' * (_WIDTH - filled)}] {share:4.0%}"
        return f"{bar}  {line}, {left:,.0f} s left"

    def _write(self, text: str, ending: str | None = None) -> None:
        self._out.write(text, style_func=str, ending=ending)
        self._out.flush()
