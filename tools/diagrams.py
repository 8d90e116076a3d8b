"""Draw docs/diagrams/*.dot as SVG files next to them, with Graphviz.

    python -m tools.diagrams

The .dot files are the source. The pictures are committed, so that a forge shows them. Each picture
contains a hash of its source, which a test compares.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "diagrams"

INK, PAPER = "#24292f", "#fffffe"
#: Fill colours by the class of a node: light mode, dark mode.
FILLINGS = {
    "": ("#f6f8fa", "#22272e"),
    "hot": ("#fff1d6", "#4a3610"),
    "done": ("#dcf5e3", "#123d22"),
    "bad": ("#fde3e1", "#4d1a17"),
    "wide": ("#dcebfd", "#12345a"),
}
DARK_INK, DARK_PAPER = "#e6edf3", "#161b22"

STYLE = [
    f'-Gbgcolor={PAPER}', "-Gpad=0.2", "-Gnodesep=0.3", "-Granksep=0.55",
    "-Gfontname=Helvetica", "-Gfontsize=11", f"-Gfontcolor={INK}", f"-Gcolor={INK}",
    "-Nshape=box", "-Nstyle=rounded,filled", f"-Nfillcolor={FILLINGS[''][0]}", "-Nmargin=0.15,0.08",
    "-Nfontname=Helvetica", "-Nfontsize=11", f"-Nfontcolor={INK}", f"-Ncolor={INK}",
    "-Efontname=Helvetica", "-Efontsize=10", f"-Efontcolor={INK}", f"-Ecolor={INK}",
    "-Earrowsize=0.7",
]  # fmt: skip


def main() -> None:
    if not shutil.which("dot"):
        raise SystemExit("Graphviz is missing: apt-get install graphviz, or brew install graphviz.")
    for source in sorted(FOLDER.glob("*.dot")):
        source.with_suffix(".svg").write_text(drawn(source))


def drawn(source: Path) -> str:
    done = subprocess.run(
        ["dot", "-Tsvg", *STYLE, str(source)], capture_output=True, text=True, check=True
    )
    svg = done.stdout[done.stdout.index("<svg") :]
    svg = re.sub(r"<!--.*?-->\n?", "", svg, flags=re.DOTALL)
    svg = re.sub(r'font-family="[^"]*"', 'font-family="Helvetica, Arial, sans-serif"', svg)
    style = f"<!-- drawn from {digest(source)} -->\n<style>{css()}</style>\n"
    return re.sub(r"(<svg.*?>\n)", lambda found: found[1] + style, svg, count=1, flags=re.DOTALL)


def digest(source: Path) -> str:
    return hashlib.sha256(source.read_bytes()).hexdigest()[:16]


def css() -> str:
    """The style sheet: colours by class, in light and in dark mode."""
    light = [
        f".{name} path, .{name} polygon {{ fill: {colours[0]} }}"
        for name, colours in FILLINGS.items()
        if name
    ]
    dark = [
        f'[fill="{PAPER}"] {{ fill: {DARK_PAPER} }}',
        f'[fill="{FILLINGS[""][0]}"] {{ fill: {FILLINGS[""][1]} }}',
        f'text, [fill="{INK}"] {{ fill: {DARK_INK} }}',
        f'[stroke="{INK}"] {{ stroke: {DARK_INK} }}',
        *(
            f".{name} path, .{name} polygon {{ fill: {colours[1]} }}"
            for name, colours in FILLINGS.items()
            if name
        ),
    ]
    return "\n".join([*light, "@media (prefers-color-scheme: dark) {", *dark, "}"])


if __name__ == "__main__":
    main()
