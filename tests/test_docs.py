"""The documentation is correct: its Python compiles, and the guides run as written.

A block that starts with ``>>>`` is a session, checked against its output. Any other block is code.
The blocks of a page share their names, as if typed one after another.
"""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import pytest
from asgiref.sync import async_to_sync

from tools.diagrams import FOLDER, digest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
#: tests/acceptance/test_packages.py runs the other pages, with the wheel.
RUN = [
    *("docs/operations.md", "docs/once.md", "docs/limits.md", "docs/tenants.md"),
    "docs/capacity.md",
]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

PURE_MODULES = [
    "django_pgqueue.acks",
    "django_pgqueue.admin.charts",
    "django_pgqueue.admin.durations",
    "django_pgqueue.templatetags.pgqueue_admin",
    "django_pgqueue.engine.arguments",
    "django_pgqueue.handlers.bodies",
    "django_pgqueue.conf",
    "django_pgqueue.engine.cron",
    "django_pgqueue.database.locks",
    "django_pgqueue.engine.names",
    "django_pgqueue.engine.times",
    "django_pgqueue.history.histograms",
    "django_pgqueue.history.recent",
    "django_pgqueue.maintenance.bounds",
    "django_pgqueue.maintenance.partitions",
    "django_pgqueue.management.base",
    "django_pgqueue.tables.rollup",
    "django_pgqueue.engine.statements",
    "django_pgqueue.retries",
    "django_pgqueue.worker.maintenance",
    "pyspark_pgqueue.lake.stream",
    "pyspark_pgqueue.source.bodies",
    "pyspark_pgqueue.source.columns",
    "pyspark_pgqueue.source.offsets",
    "pyspark_pgqueue.jobs.progress",
    "pyspark_pgqueue.rollup.figures",
    "django_pgqueue.engine.topics",
    "django_pgqueue.engine.read.sleep",
    "django_pgqueue.types",
    "django_pgqueue.engine.wording",
    "django_pgqueue.errors",
]


class Block(NamedTuple):
    """Python code between two fences, with its first line's number."""

    page: Path
    line: int
    text: str

    @property
    def is_session(self) -> bool:
        return self.text.lstrip().startswith(">>>")

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield Block(page, text.count("\n", 0, found.start(1)) + 1, found[1])


def compiled(block: Block) -> CodeType:
    # Preceded by blank lines, so that an error shows the page's line number.
    source = "\n" * (block.line - 1) + block.text
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    return compile(source, str(block.page), "exec", flags=flags, dont_inherit=True)


def session(block: Block, names: dict[str, Any]) -> doctest.DocTest:
    parser = doctest.DocTestParser()
    return parser.get_doctest(block.text, names, str(block), str(block.page), block.line)


def run(block: Block, names: dict[str, Any]) -> None:
    if block.is_session:
        test = session(block, names)
        test.globs = names  # DocTest's constructor copies them
        said: list[str] = []
        failed, _ = doctest.DocTestRunner(optionflags=FLAGS).run(
            test, out=said.append, clear_globs=False
        )
        assert not failed, "".join(said)
    else:
        waiting = eval(compiled(block), names)
        if inspect.iscoroutine(waiting):
            async_to_sync(_awaited)(waiting)


async def _awaited(waiting: Any) -> None:
    await waiting


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_of_a_page_compiles(page):
    for block in blocks(page):
        if block.is_session:
            for example in session(block, {}).examples:
                compile(example.source, str(block), "single")
        else:
            compiled(block)


@pytest.mark.parametrize("page", RUN)
def test_guide_runs_as_written(page, shop):
    names: dict[str, Any] = {"__name__": "guide"}
    found = list(blocks(ROOT / page))

    assert found
    for block in found:
        run(block, names)


@pytest.mark.parametrize("name", PURE_MODULES)
def test_examples_in_docstrings_hold(name):
    if name == "pyspark_pgqueue.source.bodies":
        pytest.importorskip("pyspark")
    failed, tried = doctest.testmod(importlib.import_module(name), optionflags=FLAGS)

    assert tried
    assert not failed


def test_a_wrong_answer_in_a_session_is_noticed():
    page = ROOT / "docs" / "made-up.md"

    with pytest.raises(AssertionError, match="Expected"):
        run(Block(page, 7, ">>> 1 + 1\n3\n"), {})


def test_links_between_pages_lead_somewhere():
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", page.read_text())
        if not (page.parent / target).exists()
    ]

    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_rows_of_a_table_have_its_columns(page):
    for table in re.findall(r"(?:^\|.*\n)+", page.read_text(), re.MULTILINE):
        head, *rows = [len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()]
        assert rows == [head] * len(rows), table.splitlines()[0]


def test_the_packages_name_no_page_which_a_wheel_lacks():
    modules = [*ROOT.glob("django_pgqueue/**/*.py"), *ROOT.glob("pyspark_pgqueue/**/*.py")]

    assert [each for each in modules if re.search(r"docs/\w+\.md", each.read_text())] == []


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    found = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 _-]", "", text.lower()).replace(" ", "-") for text in found}


def test_links_to_headings_lead_somewhere():
    broken = []
    for page in PAGES:
        for target, heading in re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)]+)\)", page.read_text()):
            other = page.parent / target if target else page
            if heading not in headings(other):
                broken.append(f"{page.relative_to(ROOT)}: {target}#{heading}")

    assert broken == []


def test_what_the_page_for_developers_names_is_there():
    _, _, page = (ROOT / "docs" / "development.md").read_text().partition("## Where is what?")
    rows = re.findall(r"^\| (?!looking|---).*\| (.*) \|$", page.partition("\n**")[0], re.MULTILINE)

    assert len(rows) >= 10
    paths = [path for row in rows for path in re.findall(r"`([^`]+)`", row)]
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("package", ["django_pgqueue", "pyspark_pgqueue"])
def test_the_layout_names_each_folder(package):
    page = (ROOT / "docs" / "design.md").read_text().partition("## The layout")[2]
    layout = page.partition(f"\n{package}/")[2].partition("\n```")[0]
    [own] = re.findall(r"\A.*\n((?:  .*\n?)+)", layout)
    told = [name for line in own.splitlines() for name in re.findall(r"(?:^  | )(\w+)/", line)]

    folders = [
        each.name for each in (ROOT / package).iterdir() if each.is_dir() and each.name[0] != "_"
    ]
    assert sorted(told) == sorted(folders)


def test_diagrams_are_drawn_from_their_text():
    sources = sorted(FOLDER.glob("*.dot"))

    assert sources
    for source in sources:
        assert f"drawn from {digest(source)}" in source.with_suffix(".svg").read_text(), source
