"""How figures are compared and written."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

__all__ = ["figure", "ratios", "summary", "table"]


def figure(value: float) -> str:
    """Three significant digits: more would be noise."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def summary(samples: Sequence[float]) -> str:
    """The median of all rounds, and the least and the most if they differ."""
    least, most = figure(min(samples)), figure(max(samples))
    return figure(statistics.median(samples)) + (f" ({least} - {most})" if least != most else "")


def ratios(of: Sequence[float], to: Sequence[float]) -> list[float]:
    """The ratio in each round: a disturbance in a round affects both sides."""
    # An interrupted round may lack one of the two.
    return [a / b for a, b in zip(of, to, strict=False)]


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, text: int = 1) -> str:
    """A Markdown table: text in the first columns, figures in the others."""
    rule = ["---"] * text + ["---:"] * (len(head) - text)
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, rule, *rows])
