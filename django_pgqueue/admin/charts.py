"""The coordinates of charts. Templates draw them as SVG, without JavaScript."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.utils.formats import date_format
from django.utils.functional import cached_property
from django.utils.html import format_html_join
from django.utils.safestring import mark_safe
from django.utils.timezone import is_aware, localtime
from django.utils.translation import gettext

from django_pgqueue.history.histograms import LEAST, MOST
from django_pgqueue.models import Mark
from django_pgqueue.templatetags.pgqueue_admin import cut, decimal, lapse
from django_pgqueue.templatetags.pgqueue_admin import moment as moment_text

WIDTH, HEIGHT = 480, 180
LEFT, RIGHT, TOP, BOTTOM = 52, 8, 10, 24
LABELS = 6
#: The width that a mark's text takes, and its maximum number of characters.
MARK_SPACE, MARK_LENGTH = 60, 10
#: Maximum number of bars in a histogram, unless it has times of all lengths.
BARS = 24
#: Round durations of up to a day, in seconds. They are the distances between axis labels.
ROUND = (15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)
#: The possible distances between labels of the x axis, in seconds. Labels show minutes.
STEPS = (*(each for each in ROUND if each >= 300), *(86_400 * days for days in (2, 7, 14, 28, 84)))

Values = Sequence["float | None"]


@dataclass(frozen=True)
class Line:
    """One series: its name, a value for each span, and its CSS class (``look``)."""

    name: str
    values: Values
    look: str
    #: Whether values are sums over spans. If so, an unfinished span's value is not drawn.
    adds: bool = False


class Column(NamedTuple):
    """A span of a chart."""

    x: float  # Where it begins.
    at: str  # When it begins.
    running: bool  # Whether it is unfinished.
    cells: list[str]  # The values of the lines.


@dataclass
class Chart:
    """One chart; the template also shows its values as a table."""

    title: str
    about: str
    moments: Sequence[dt.datetime]
    seconds: int
    lines: Sequence[Line]
    form: Callable[[float], str]  # Formats a value.
    whole: bool = False  # Whether values are whole numbers.
    running: bool = False  # Whether the last span is unfinished.
    marks: Sequence[Mark] = ()  # Deploys and the like, the oldest first.

    def __post_init__(self) -> None:
        self.width, self.height = WIDTH, HEIGHT
        self.left, self.top, self.right, self.bottom = LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM
        most = max((v for line in self.lines for v in line.values if v is not None), default=0)
        self.ticks_at = ticks(most, whole=self.whole, timed=self.form is lapse)
        self.highest = self.ticks_at[-1]
        self.plot_height = self.bottom - self.top
        self.step = (self.right - self.left) / max(len(self.moments), 1)

    def x(self, place: int) -> float:
        """Return the x coordinate of the middle of a span."""
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
        told += [f"{each['mark']} {moment_text(each['mark'].at)}" for each in self.drawn_marks]
        return "; ".join(told) or gettext("No data.")

    @property
    def is_empty(self) -> bool:
        """Whether every value is zero or missing."""
        return not any(any(line.values) for line in self.lines)

    @property
    def paths(self) -> list[dict[str, Any]]:
        found = []
        for line in self.lines:
            drawn = line.values[:-1] if self.running and line.adds else line.values
            runs = _runs([None if v is None else self.y(v) for v in drawn])
            path = "".join(
                "M" + "L".join(f"{self.x(place)} {y}" for place, y in run) for run in runs
            )
            alone = [(self.x(run[0][0]), run[0][1]) for run in runs if len(run) == 1]
            # A filled series has a value in each span, so its area has no gaps.
            end = f"V{self.bottom}H{self.x(0)}Z"
            area = path + end if "filled" in line.look and len(drawn) > 1 else ""
            found.append({"line": line, "path": path, "area": area, "alone": alone})
        return found

    @property
    def drawn_marks(self) -> list[dict[str, Any]]:
        """A dict per mark: its x coordinate, and its text where the text has space."""
        found: list[dict[str, Any]] = []
        free = 0.0
        for mark in self.marks:
            seconds = mark.at.timestamp() - self.moments[0].timestamp()
            x = round(self.left + seconds / self.seconds * self.step, 1)
            if self.left <= x <= self.right:
                end = x > self.right - MARK_SPACE
                has_space = x >= free
                free = x + MARK_SPACE if has_space else free
                text = cut(mark.text, MARK_LENGTH) if has_space else ""
                found.append({"x": x, "mark": mark, "text": text, "at_end": end})
        return found

    @property
    def ticks(self) -> list[tuple[float, str]]:
        return [(self.y(value), self.form(value)) for value in self.ticks_at]

    @property
    def labels(self) -> list[tuple[float, str]]:
        """Labels of the x axis: round times of day, or dates in a long chart."""
        step = next((s for s in STEPS if len(self.moments) * self.seconds / s < LABELS), STEPS[-1])
        found = []
        for place, moment in enumerate(self.moments):
            at = localtime(moment) if is_aware(moment) else moment
            past = at.toordinal() * 86_400 + at.hour * 3600 + at.minute * 60 + at.second
            if past % step < self.seconds:
                text = f"{at:%H:%M}" if step < 86_400 else date_format(at, "j M")
                found.append((self._start(place), text))
        return found

    def _start(self, place: int) -> float:
        return round(self.left + place * self.step, 1)

    @cached_property
    def columns(self) -> list[Column]:
        """A column per span."""
        found = []
        for place, moment in enumerate(self.moments):
            values = [line.values[place] for line in self.lines]
            cells = ["-" if value is None else self.form(value) for value in values]
            running = self.running and place == len(self.moments) - 1
            at = localtime(moment) if is_aware(moment) else moment
            found.append(Column(self._start(place), f"{at:%Y-%m-%d %H:%M}", running, cells))
        return found

    # A template's loops over spans and lines would take most of a page's time.

    @property
    def areas(self) -> str:
        """An invisible rectangle per span, with its values as a tooltip."""
        size = f'y="{self.top}" width="{self.step:.2f}" height="{self.plot_height}"'
        names = [line.name for line in self.lines]
        told = []
        for each in self.columns:
            look = ' class="running"' if each.running else ""
            at = each.at + (gettext(", not over yet") if each.running else "")
            values = map(" ".join, zip(names, each.cells, strict=True))
            told.append((mark_safe(f'<rect{look} x="{each.x}" {size}>'), "\n".join([at, *values])))
        return format_html_join("\n", "{}<title>{}</title></rect>", told)

    @property
    def rows(self) -> str:
        """The rows of the table, the newest span first."""
        cells = "<td>{}</td>" * len(self.lines)
        return format_html_join(
            "\n",
            f'<tr><th scope="row">{{}}</th>{cells}</tr>',
            ((each.at, *each.cells) for each in reversed(self.columns)),
        )


class Bar(NamedTuple):
    """A bar of a histogram: its place in the drawing, and the times that it counts."""

    x: float
    y: float
    height: float
    range: str
    number: int
    share: float  # Of all counts.


class Histogram:
    """How many times fell into each range of time. The template also shows it as a table.

    ``counts`` are those of :mod:`django_pgqueue.history.histograms`; up to eight of its buckets
    share a bar.
    """

    width, height = WIDTH, HEIGHT
    left, top, right, bottom = LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM

    def __init__(self, title: str, about: str, counts: Mapping[str, int]) -> None:
        self.title, self.about = title, about
        found = {int(key): count for key, count in counts.items() if count}
        self.total = sum(found.values())
        first, last = min(found, default=0), max(found, default=0)
        size = next(each for each in (1, 2, 4, 8) if (last - first) / each < BARS or each == 8)
        begin = first // size * size
        self._starts = range(begin, last + 1, size)
        self._sums = [
            sum(count for key, count in found.items() if start <= key < start + size)
            for start in self._starts
        ]
        self._size = size
        self._ticks = ticks(max(self._sums, default=0), whole=True)
        self.step = round((self.right - self.left) / max(len(self._sums), 1), 2)

    @property
    def bars(self) -> list[Bar]:
        scale = (self.bottom - self.top) / self._ticks[-1]
        return [
            Bar(
                round(self.left + place * self.step, 1),
                round(self.bottom - count * scale, 1),
                round(count * scale, 1),
                self._range(start),
                count,
                count / self.total if self.total else 0.0,
            )
            for place, (start, count) in enumerate(zip(self._starts, self._sums, strict=True))
        ]

    @property
    def ticks(self) -> list[tuple[float, str]]:
        scale = (self.bottom - self.top) / self._ticks[-1]
        return [(round(self.bottom - tick * scale, 1), count_of(tick)) for tick in self._ticks]

    @property
    def labels(self) -> list[tuple[float, str]]:
        """Labels of the x axis: where bars begin, at most ``LABELS`` of them."""
        every = math.ceil(len(self._sums) / LABELS)
        return [
            (round(self.left + place * self.step, 1), lapse(2 ** (start / 4)))
            for place, start in enumerate(self._starts)
            if place % every == 0
        ]

    @property
    def summary(self) -> str:
        """The histogram in words, for a screen reader."""
        if not self.total:
            return gettext("No data.")
        most = max(self.bars, key=lambda bar: bar.number)
        text = gettext("%(count)s in all, most often %(range)s")
        return text % {"count": count_of(self.total), "range": most.range}

    def _range(self, start: int) -> str:
        """Return the times that a bar counts. The first and the last bucket have no end."""
        if start + self._size > MOST:
            return gettext("%s or more") % lapse(2 ** (start / 4))
        end = lapse(2 ** ((start + self._size) / 4))
        if start <= LEAST:
            return gettext("up to %s") % end
        return f"{lapse(2 ** (start / 4))} – {end}"  # noqa: RUF001


def _runs(values: Values) -> list[list[tuple[int, float]]]:
    """Split a series where values are missing. Return lists of (index, value) pairs."""
    runs: list[list[tuple[int, float]]] = [[]]
    for place, value in enumerate(values):
        if value is None:
            runs.append([])
        else:
            runs[-1].append((place, value))
    return [run for run in runs if run]


def spark_paths(series: Sequence[Sequence[float]], width: int = 120, height: int = 24) -> list[str]:
    """Return the SVG paths of a table cell's sparklines, all on the same scale."""
    most = max((max(values, default=0) for values in series), default=0) or 1
    return [
        "M"
        + "L".join(
            f"{place * width / max(len(values) - 1, 1):.1f} "
            f"{height - 1 - value / most * (height - 2):.1f}"
            for place, value in enumerate(values)
        )
        for values in series
    ]


def ticks(most: float, *, whole: bool = False, timed: bool = False) -> list[float]:
    """Return the tick values of an axis: round numbers from zero up to ``most`` or just above it.

    >>> ticks(7.2), ticks(0)
    ([0.0, 2.0, 4.0, 6.0, 8.0], [0.0, 1.0])
    """
    if most <= 0:
        return [0.0, 1.0]
    if timed and most > 60:
        step = next((s for s in ROUND if most / s <= 5), 86_400.0 * math.ceil(most / 86_400 / 5))
    else:
        power = 10.0 ** math.floor(math.log10(most))
        step = next(
            part * power for part in (0.2, 0.25, 0.5, 1.0, 2.0) if most / (part * power) <= 5
        )
        if not timed:  # Labels show two decimals.
            step = max(step, 1.0 if whole else 0.01)
    return [step * number for number in range(math.ceil(most / step - 1e-9) + 1)]


def count_of(value: float) -> str:
    """Format a number in a few characters, for an axis label.

    >>> count_of(950), count_of(15_000), count_of(2_000_000), count_of(0.25), count_of(6.5e-05)
    ('950', '15,000', '2M', '0.25', '< 0.01')
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size and value >= 100_000:
            return f"{decimal(value / size)}{letter}"
    return f"< {decimal(0.01)}" if 0 < value < 0.01 else decimal(value)
