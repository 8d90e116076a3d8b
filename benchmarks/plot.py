"""A bar chart as SVG: bars show the median, lines the range."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.bench import Outcome

WIDTH, LEFT, RIGHT, ROW, TOP = 760, 220, 110, 30, 46
OURS, OTHERS = "#2f6f4f", "#8a8f98"


def bars(outcome: Outcome, made_of: str) -> str:
    """Draw one bar per contestant, in the scenario's own unit."""
    unit = outcome.scenario.unit
    drawn = {label: units[unit] for label, units in outcome.samples.items() if unit in units}
    longest = max((max(samples) for samples in drawn.values()), default=0) or 1
    scale = (WIDTH - LEFT - RIGHT) / longest
    height = TOP + ROW * len(drawn) + 30
    less = "less" if outcome.scenario.lower_is_better else "more"
    title = escape(f"{outcome.scenario.title} ({outcome.payload.name})")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="13">',
        f"<title>{title}</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="12" y="18" font-weight="bold">{title}</text>',
        f'<text x="12" y="35" fill="#555" font-size="11">{escape(unit)}, {less} is better; '
        "the line is from the least to the most of all rounds</text>",
    ]
    for place, (label, samples) in enumerate(drawn.items()):
        y = TOP + ROW * place
        median = outcome.median(label, unit)
        end = LEFT + median * scale
        low, high = LEFT + min(samples) * scale, LEFT + max(samples) * scale
        color = OURS if label.startswith("ours") else OTHERS
        number = f"{median:,.0f}" if median >= 100 else f"{median:.3g}"
        parts += [
            f'<text x="{LEFT - 8}" y="{y + 17}" text-anchor="end">{escape(label)}</text>',
            f'<rect x="{LEFT}" y="{y + 3}" width="{end - LEFT:.1f}" height="20" fill="{color}"/>',
            f'<path d="M{low:.1f} {y + 13}H{high:.1f}" stroke="#111" stroke-width="1.5"/>',
            f'<text x="{max(end, high) + 8:.1f}" y="{y + 17}">{number}</text>',
        ]
    parts.append(
        f'<text x="12" y="{height - 10}" fill="#555" font-size="11">{escape(made_of)}</text>'
    )
    return "\n".join([*parts, "</svg>"]) + "\n"
