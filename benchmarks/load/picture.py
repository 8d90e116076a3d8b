"""The curves as SVG, in the reader's theme."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

__all__ = ["Panel", "svg"]

WIDTH, HEIGHT = 250, 190
LEFT, RIGHT, TOP, BOTTOM = 54, 12, 30, 34
LEGEND = 28
#: A line's dashes, so that colours are not all that tells lines apart.
DASHES = ("", "6 3", "2 3", "8 3 2 3")
STYLE = """
  svg { font: 11px system-ui, sans-serif; fill: #24292f; --grid: #d8dee4;
        --line0: #cf222e; --line1: #0969da; --line2: #1a7f37; --line3: #8250df; }
  @media (prefers-color-scheme: dark) {
    svg { fill: #e6edf3; --grid: #3d444d;
          --line0: #ff7b72; --line1: #79c0ff; --line2: #56d364; --line3: #d2a8ff; }
  }
  .title { font-weight: 600; }
  .grid { stroke: var(--grid); }
  polyline { fill: none; stroke-width: 1.8; }
"""


@dataclass
class Panel:
    """One diagram: a line for each label, with None where a value is missing."""

    title: str
    ticks: Sequence[str]
    lines: dict[str, list[float | None]] = field(default_factory=dict)

    def values(self) -> list[float]:
        return [v for line in self.lines.values() for v in line if v is not None and v > 0]


def svg(panels: Sequence[Panel], labels: Sequence[str], x_axis: str, columns: int = 3) -> str:
    """Panels in rows. Both axes are logarithmic; the x axis by its ticks, at equal distances."""
    rows = math.ceil(len(panels) / columns)
    width, height = columns * WIDTH, LEGEND + rows * HEIGHT
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img">',
        f"<title>{escape(', '.join(panel.title for panel in panels))}</title>",
        f"<style>{STYLE}</style>",
    ]
    for number, label in enumerate(labels):
        x = 12 + number * (width - 12) / len(labels)
        drawn.append(_line(number, [(x, 14), (x + 26, 14)]))
        drawn.append(f'<text x="{x + 32:.0f}" y="18">{escape(label)}</text>')
    for number, panel in enumerate(panels):
        row, column = divmod(number, columns)
        drawn.append(f'<g transform="translate({column * WIDTH} {LEGEND + row * HEIGHT})">')
        drawn += _panel(panel, labels, x_axis)
        drawn.append("</g>")
    return "\n".join([*drawn, "</svg>"]) + "\n"


def _panel(panel: Panel, labels: Sequence[str], x_axis: str) -> list[str]:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    drawn = [f'<text class="title" x="12" y="18">{escape(panel.title)}</text>']
    steps = _steps(panel.values())
    low, high = math.log(steps[0]), math.log(steps[-1])

    def x(place: int) -> float:
        return LEFT + 8 + place * (right - LEFT - 16) / max(len(panel.ticks) - 1, 1)

    def y(value: float) -> float:
        return bottom - (math.log(value) - low) / (high - low) * (bottom - TOP)

    for step in steps:
        at = f"{y(step):.1f}"
        drawn.append(f'<line class="grid" x1="{LEFT}" y1="{at}" x2="{right}" y2="{at}"/>')
        drawn.append(
            f'<text x="{LEFT - 5}" y="{y(step) + 4:.1f}" text-anchor="end">{step:,g}</text>'
        )
    for place, tick in enumerate(panel.ticks):
        drawn.append(
            f'<text x="{x(place):.1f}" y="{bottom + 14}" text-anchor="middle">{escape(tick)}</text>'
        )
    middle = (LEFT + right) / 2
    drawn.append(
        f'<text x="{middle}" y="{bottom + 27}" text-anchor="middle">{escape(x_axis)}</text>'
    )
    for number, label in enumerate(labels):
        points = [
            (x(place), y(value))
            for place, value in enumerate(panel.lines.get(label, []))
            if value is not None and value > 0
        ]
        if points:
            drawn.append(_line(number, points))
            drawn += [
                f'<circle cx="{px:.1f}" cy="{py:.1f}" r="2.5" fill="var(--line{number % 4})"/>'
                for px, py in points
            ]
    return drawn


def _line(number: int, points: Sequence[tuple[float, float]]) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return (
        f'<polyline points="{path}" stroke="var(--line{number % 4})" '
        f'stroke-dasharray="{DASHES[number % len(DASHES)]}"/>'
    )


def _steps(values: Sequence[float]) -> list[float]:
    """1, 2, 5, 10, ... from below the least value to above the most; few if they span much."""
    least, most = (min(values), max(values)) if values else (1, 10)
    every = [m * 10.0**e for e in range(-4, 10) for m in (1, 2, 5)]
    first = max((n for n, step in enumerate(every) if step <= least), default=0)
    last = min((n for n, step in enumerate(every) if step >= most), default=len(every) - 1)
    if first == last:
        last += 1
    if last - first > 6:
        first, last = first - first % 3, last + -last % 3
        return every[first : last + 1 : 3]
    return every[first : last + 1]
