"""The coordinates of charts. Templates draw them as SVG, without JavaScript."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.timezone import is_aware, localtime
from django.utils.translation import gettext

__all__ = ["Chart", "Line", "count_of", "seconds_of", "spark_path"]

WIDTH, HEIGHT = 480, 180
LEFT, RIGHT, TOP, BOTTOM = 52, 8, 10, 24
LABELS = 5

Values = Sequence["float | None"]


@dataclass(frozen=True)
class Line:
    """One series: its name, a value for each span, and its CSS class (``look``)."""

    name: str
    values: Values
    look: str


@dataclass
class Chart:
    """One chart; the template also shows its values as a table."""

    title: str
    about: str
    moments: Sequence[dt.datetime]
    seconds: int
    lines: Sequence[Line]
    form: Callable[[float], str]  # formats a value
    whole: bool = False  # values are whole numbers
    running: bool = False  # the last span is not over yet

    def __post_init__(self) -> None:
        self.width, self.height = WIDTH, HEIGHT
        self.left, self.top, self.right, self.bottom = LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM
        most = max((v for line in self.lines for v in line.values if v is not None), default=0)
        self.ticks_at = ticks(most, whole=self.whole, timed=self.form is seconds_of)
        self.highest = self.ticks_at[-1]
        self.plot_height = self.bottom - self.top
        self.step = (self.right - self.left) / max(len(self.moments), 1)

    def x(self, place: int) -> float:
        """The x coordinate of the middle of a span."""
        return round(self.left + (place + 0.5) * self.step, 1)

    def y(self, value: float) -> float:
        return round(self.bottom - value / self.highest * self.plot_height, 1)

    @property
    def summary(self) -> str:
        """The chart in words, for a screen reader."""
        told = []
        for line in self.lines:
            known = [value for value in line.values if value is not None]
            if known:
                text = gettext("%(line)s: %(last)s last, %(most)s at most")
                most = self.form(max(known))
                told.append(text % {"line": line.name, "last": self.form(known[-1]), "most": most})
        return "; ".join(told) or gettext("Nothing happened.")

    @property
    def paths(self) -> list[dict[str, Any]]:
        found = []
        for line in self.lines:
            runs = _runs([None if v is None else self.y(v) for v in line.values])
            path = "".join(
                "M" + "L".join(f"{self.x(place)} {y}" for place, y in run) for run in runs
            )
            alone = [(self.x(run[0][0]), run[0][1]) for run in runs if len(run) == 1]
            # A filled series is a count: it has a value in each span, so its area has no gaps.
            area = f"{path}V{self.bottom}H{self.x(0)}Z" if "filled" in line.look else ""
            found.append({"line": line, "path": path, "area": area, "alone": alone})
        return found

    @property
    def ticks(self) -> list[tuple[float, str]]:
        return [(self.y(value), self.form(value)) for value in self.ticks_at]

    @property
    def labels(self) -> list[tuple[float, str]]:
        """Labels of the x axis: times, or days if the chart is longer than a day."""
        local = [localtime(at) if is_aware(at) else at for at in self.moments]
        every = max(-(-len(local) // LABELS), 1)
        if len(local) * self.seconds > 86_400:
            days = [n for n, at in enumerate(local) if n and at.date() != local[n - 1].date()]
            days = days[:: max(-(-len(days) // LABELS), 1)]
            return [(self._start(n), f"{local[n]:%b} {local[n].day}") for n in days]
        return [(self._start(n), f"{local[n]:%H:%M}") for n in range(0, len(local), every)][1:]

    def _start(self, place: int) -> float:
        return round(self.left + place * self.step, 1)

    @property
    def columns(self) -> list[dict[str, Any]]:
        """For each span its position, its start, and the text of its tooltip."""
        found = []
        for place, moment in enumerate(self.moments):
            values = [line.values[place] for line in self.lines]
            cells = ["-" if value is None else self.form(value) for value in values]
            title = "\n".join(
                f"{line.name} {cell}" for line, cell in zip(self.lines, cells, strict=True)
            )
            running = self.running and place == len(self.moments) - 1
            found.append(
                {
                    "x": self._start(place),
                    "moment": moment,
                    "running": running,
                    "title": title,
                    "cells": cells,
                }
            )
        return found


def _runs(values: Values) -> list[list[tuple[int, float]]]:
    """The series as (index, value) pairs, split where values are missing."""
    runs: list[list[tuple[int, float]]] = [[]]
    for place, value in enumerate(values):
        if value is None:
            runs.append([])
        else:
            runs[-1].append((place, value))
    return [run for run in runs if run]


def spark_path(values: Sequence[float], width: int = 120, height: int = 24, most: float = 0) -> str:
    """The SVG path of a sparkline for a table cell; ``most`` or the largest value is the top."""
    most, step = most or max(values, default=0) or 1, width / max(len(values) - 1, 1)
    points = (
        f"{place * step:.1f} {height - 1 - value / most * (height - 2):.1f}"
        for place, value in enumerate(values)
    )
    return "M" + "L".join(points)


def ticks(most: float, *, whole: bool = False, timed: bool = False) -> list[float]:
    """Round numbers from zero to the first that is not below the largest value.

    >>> ticks(7.2), ticks(0)
    ([0.0, 2.0, 4.0, 6.0, 8.0], [0.0, 1.0])
    """
    if most <= 0:
        return [0.0, 1.0]
    if timed and most > 60:
        rounds = (15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 43_200, 86_400)
        step = next((s for s in rounds if most / s <= 5), 86_400.0 * math.ceil(most / 86_400 / 5))
    else:
        power = 10.0 ** math.floor(math.log10(most))
        step = next(
            part * power for part in (0.2, 0.25, 0.5, 1.0, 2.0) if most / (part * power) <= 5
        )
        if not timed:  # labels have two decimals
            step = max(step, 1.0 if whole else 0.01)
    return [step * number for number in range(math.ceil(most / step - 1e-9) + 1)]


def count_of(value: float) -> str:
    """A number in a few characters, for an axis label.

    >>> count_of(950), count_of(1500), count_of(2_000_000), count_of(0.25), count_of(6.5e-05)
    ('950', '1.5k', '2M', '0.25', '< 0.01')
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return "< 0.01" if 0 < value < 0.01 else f"{value:.3g}"


def seconds_of(value: float) -> str:
    """A duration in a few characters, for an axis label.

    >>> seconds_of(0), seconds_of(0.25), seconds_of(5), seconds_of(90), seconds_of(7200)
    ('0', '250 ms', '5 s', '1.5 min', '2 h')
    """
    if value == 0:
        return "0"
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1000:.3g} ms"
