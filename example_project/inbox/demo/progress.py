"""The demo's progress: one line that renews itself in a terminal, plain lines in a log."""

from __future__ import annotations

import shutil
import time
from collections import Counter

from django.core.management.base import OutputWrapper

from example_project.inbox.demo.count import Standing

BAR = 24
LOG_EVERY_SECONDS = 2.0


class Progress:
    def __init__(self, stream: OutputWrapper, total: int):
        self.stream = stream
        self.total = total
        self.is_terminal = stream.isatty()
        self._started = time.monotonic()
        self._logged = 0.0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def show(self, traffic: Counter[str], standing: Standing) -> None:
        line = self.line(traffic, standing)
        if self.is_terminal:
            columns = shutil.get_terminal_size().columns
            self.stream.write(f"\r\x1b[K{line[: columns - 1]}", ending="")
            self.stream.flush()
        elif time.monotonic() - self._logged >= LOG_EVERY_SECONDS:
            self._logged = time.monotonic()
            self.stream.write(line)

    def finish(self, traffic: Counter[str], standing: Standing) -> None:
        self._logged = 0.0
        self.show(traffic, standing)
        if self.is_terminal:
            self.stream.write("")

    def line(self, traffic: Counter[str], standing: Standing) -> str:
        rate = standing.done / self.seconds if self.seconds else 0
        numbers = (
            f"sent {traffic['sent']}/{self.total}  ready {standing.ready}  "
            f"in flight {standing.in_flight}  archived {standing.archived}  "
            f"failed {standing.failed}  {rate:.0f}/s"
        )
        return f"{self._bar(standing.done)} {numbers}" if self.is_terminal else numbers

    def _bar(self, done: int) -> str:
        filled = round(BAR * done / self.total) if self.total else BAR
        return "█" * filled + "░" * (BAR - filled)
