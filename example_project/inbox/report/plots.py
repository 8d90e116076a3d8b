"""Plots as SVG and tables as text, with nothing but the standard library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from xml.sax.saxutils import escape

__all__ = ["bars", "columns", "table"]

WIDTH, ROW, LABEL = 720, 22, 230
HEIGHT, FOOT = 220, 40


def bars(rows: Sequence[tuple[str, float]]) -> str:
    """Horizontal bars, one a row, each with its label and value."""
    most = max((value for _, value in rows), default=0) or 1
    parts = []
    for place, (label, value) in enumerate(rows):
        y = place * ROW
        length = (WIDTH - LABEL - 70) * value / most
        parts.append(
            f'<text x="{LABEL - 8}" y="{y + 15}" text-anchor="end">{escape(label)}</text>'
            f'<rect x="{LABEL}" y="{y + 4}" width="{length:.1f}" height="{ROW - 8}" rx="2"/>'
            f'<text x="{LABEL + length + 6:.1f}" y="{y + 15}">{value:,.0f}</text>'
        )
    return _svg(WIDTH, len(rows) * ROW + 4, parts)


def columns(labels: Sequence[str], series: dict[str, Sequence[float]], unit: str) -> str:
    """Groups of columns, one a label, and what each colour stands for."""
    most = max((value for values in series.values() for value in values), default=0) or 1
    step = (WIDTH - 60) / max(len(labels), 1)
    wide = min(step * 0.8 / max(len(series), 1), 40)
    base = HEIGHT - FOOT
    parts = [f'<text x="4" y="12">{most:.3g} {escape(unit)}</text>']
    every = -(-len(labels) // 12)
    for place, label in enumerate(labels):
        x = 50 + place * step
        for number, values in enumerate(series.values()):
            height = (base - 20) * values[place] / most
            parts.append(
                f'<rect class="s{number}" x="{x + number * wide:.1f}" y="{base - height:.1f}" '
                f'width="{wide * 0.9:.1f}" height="{height:.1f}">'
                f"<title>{escape(label)}: {values[place]:.3g} {escape(unit)}</title></rect>"
            )
        if place % every == 0:
            parts.append(f'<text x="{x:.1f}" y="{base + 15}">{escape(label)}</text>')
    for number, name in enumerate(series):
        x = 50 + number * 90
        parts.append(
            f'<rect class="s{number}" x="{x}" y="{HEIGHT - 16}" width="12" height="12"/>'
            f'<text x="{x + 17}" y="{HEIGHT - 6}">{escape(name)}</text>'
        )
    return _svg(WIDTH, HEIGHT, parts)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Rows under their names, numbers to the right, as in a terminal."""
    if not rows:
        return "(nothing)"
    cells = [[str(name) for name in rows[0]]]
    cells += [[_text(value) for value in row.values()] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    numeric = [isinstance(value, (int, float)) for value in rows[0].values()]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in cells
    )


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    if hasattr(value, "strftime"):
        return str(value.strftime("%Y-%m-%d %H:%M"))
    return "-" if value is None else str(value)


def _svg(width: int, height: int, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'class="plot">{"".join(parts)}</svg>'
    )
