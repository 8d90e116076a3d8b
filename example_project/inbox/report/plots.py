"""Plots as SVG, and tables as text, with only the standard library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from xml.sax.saxutils import escape

__all__ = ["bars", "table"]

WIDTH, ROW, LABEL = 720, 22, 230


def bars(rows: Sequence[tuple[str, float]]) -> str:
    """Horizontal bars, one per row, each with a label and a value."""
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
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {len(rows) * ROW + 4}" '
        f'role="img" class="plot">{"".join(parts)}</svg>'
    )


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A text table with a heading; numbers are right-aligned."""
    if not rows:
        return "(nothing)"
    cells = [[str(name) for name in rows[0]]]
    cells += [["-" if value is None else str(value) for value in row.values()] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    numeric = [isinstance(value, int) for value in rows[0].values()]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in cells
    )
