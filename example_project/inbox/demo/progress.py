"""The demo's progress: a redrawn bar in a terminal, and lines elsewhere."""

from __future__ import annotations

import shutil
import time
from collections import Counter

from django.core.management.base import OutputWrapper

from example_project.inbox.demo.count import Standing

BAR = 24
LINE_EVERY_SECONDS = 2.0


class Progress:
    def __init__(self, stream: OutputWrapper, total: int):
        self.stream = stream
        self.total = total
        self.is_terminal = stream.isatty()
        self._started = time.monotonic()
        self._written = 0.0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def show(self, traffic: Counter[str], standing: Standing) -> None:
        line = self.line(traffic, standing)
        if self.is_terminal:
            columns = shutil.get_terminal_size().columns
            self.stream.write(f"\r\x1b[K{line[: columns - 1]}", ending="")
            self.stream.flush()
        elif time.monotonic() - self._written >= LINE_EVERY_SECONDS:
            self._written = time.monotonic()
            self.stream.write(line)

    def note(self, text: str) -> None:
        """Write a permanent line above the bar."""
        self.stream.write(f"\r\x1b[K{text}" if self.is_terminal else text)

    def finish(self, traffic: Counter[str], standing: Standing) -> None:
        self._written = 0.0
        self.show(traffic, standing)
        if self.is_terminal:
            self.stream.write("")

    def line(self, traffic: Counter[str], standing: Standing) -> str:
        numbers = (
            f"sent {traffic['sent']}/{self.total}  ready {standing.ready}  "
            f"in flight {standing.in_flight}  waiting {standing.waiting}  "
            f"archived {standing.archived}  dead {standing.dead}"
        )
        steps = traffic["sent"] + standing.archived
        return f"{self._bar(steps)} {numbers}" if self.is_terminal else numbers

    def _bar(self, steps: int) -> str:
        """Draw the bar: sending a delivery is half of its progress, handling it the other half."""
        filled = min(BAR, BAR * steps // (2 * self.total))
        return "█" * filled + "░" * (BAR - filled)
