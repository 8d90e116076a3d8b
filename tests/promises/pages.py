"""The promises that the pages print, and the tests that stand behind them.

A promise is a sentence or a row of a table in docs/guarantees.md, outside of "Not promised", or in
a section "What is promised" of another page. It is quoted as a reader sees it: without the marks of
Markdown, the cells of a row between bars.

A file of this folder has a section's tests. In it

- a test with ``@promise("...")`` shows the quoted promises;
- ``ELSEWHERE = {"...": ["tests/worker/test_leases.py::test_..."]}`` names tests of other folders
  that show a promise. That is not enough for a promise of *never*, *always*, *exactly*, *at once*,
  *strictly* or *at most*, which needs a test here, at full speed;
- ``EXPLAINED = ["..."]`` has sentences that promise nothing.

A quotation may end early, with three dots. Whoever changes a promise has to change its quotation,
and so finds its test.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

__all__ = ["PAGES", "Promise", "Proofs", "all_proofs", "printed", "problems", "promise"]

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    f"docs/{path.name}": path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "docs").glob("*.md"))
}
ABSOLUTE = re.compile(r"\b(never|always|exactly|at once|strictly|at most)\b", re.IGNORECASE)

#: Marks a test with the promises that it shows.
promise = pytest.mark.promise


class Promise(NamedTuple):
    """A sentence or a row, with the file that its section links."""

    page: str
    section: str
    text: str
    tests: str | None


@dataclass
class Proofs:
    """What one file of tests quotes."""

    path: str
    tests: list[str] = field(default_factory=list)
    elsewhere: Mapping[str, list[str]] = field(default_factory=dict)
    explained: list[str] = field(default_factory=list)

    @property
    def quotations(self) -> list[str]:
        return [*self.tests, *self.elsewhere, *self.explained]


def printed(pages: Mapping[str, str]) -> list[Promise]:
    """The promises of pages, given as their texts by name."""
    found = []
    for page, text in pages.items():
        for section, body in _sections(text):
            if page == "docs/guarantees.md":
                if section in (None, "Not promised"):
                    continue
            elif section != "What is promised":
                continue
            link = re.search(r"^\[Tests\]\(\.\./(tests/promises/\w+\.py)\)$", body, re.MULTILINE)
            rest = body.replace(link[0], "") if link else body
            tests = link[1] if link else None
            found += [Promise(page, section, each, tests) for each in _sentences(rest)]
    return found


def _sections(text: str) -> Iterator[tuple[str | None, str]]:
    """The headings of a page with the text below each, and None with the text before the first."""
    heading = None
    for part in re.split(r"^(?=##+ )", text, flags=re.MULTILINE):
        head, _, body = part.partition("\n")
        if head.startswith("##"):
            heading = head.lstrip("#").strip()
        yield heading, body


def _sentences(body: str) -> Iterator[str]:
    for block in re.split(r"\n\s*\n", body):
        if block.lstrip().startswith("|"):
            for row in block.strip().splitlines()[2:]:
                yield " | ".join(_plain(cell) for cell in row.strip().strip("|").split("|"))
            continue
        for item in re.split(r"^- ", block, flags=re.MULTILINE):
            if text := _plain(item):
                yield from re.split(r"(?<=[.!?]) (?=[A-Z(\"])", text)


def _plain(text: str) -> str:
    """Text as a reader sees it, without the marks of Markdown."""
    text = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text)
    return " ".join(re.sub(r"[`*]", "", text).split())


def proofs_of(module: ModuleType, path: str) -> Proofs:
    """What a file of tests quotes."""
    quoted = [
        sentence
        for thing in vars(module).values()
        for mark in _marks(thing)
        if mark.name == "promise"
        for sentence in mark.args
    ]
    elsewhere = getattr(module, "ELSEWHERE", {})
    return Proofs(path, quoted, elsewhere, getattr(module, "EXPLAINED", []))


def _marks(thing: Any) -> Iterable[Any]:
    return getattr(thing, "pytestmark", ()) if callable(thing) else ()


def all_proofs() -> list[Proofs]:
    files = sorted(path.stem for path in Path(__file__).parent.glob("test_*.py"))
    return [
        proofs_of(importlib.import_module(f"tests.promises.{name}"), f"tests/promises/{name}.py")
        for name in files
    ]


def problems(pages: Mapping[str, str], proofs: Iterable[Proofs]) -> list[str]:
    """Promises without a test, and quotations that no page prints. Empty if all is well."""
    promises = printed(pages)
    known = {each.path: each for each in proofs}
    unproven = [_unproven(each, known.get(each.tests or "")) for each in promises]
    found = [
        f"{each.page}, {each.section}: {why}"
        for each, why in zip(promises, unproven, strict=True)
        if why
    ]
    for proof in known.values():
        texts = [each.text for each in promises if each.tests == proof.path]
        for quotation in dict.fromkeys(proof.quotations):
            count = sum(_says(text, quotation) for text in texts)
            if count != 1:
                found.append(f"{proof.path}: {count} times on its page, not once: {quotation}")
        named = [test for tests in proof.elsewhere.values() for test in tests]
        found += [f"{proof.path}: there is no test {test}" for test in named if not _exists(test)]
    return found


def _unproven(each: Promise, proof: Proofs | None) -> str | None:
    """Why no test shows a promise; None if one does."""
    if each.tests is None:
        return f"the section links no tests, for: {each.text}"
    if proof is not None:
        if _quoted(each.text, [*proof.tests, *proof.explained]):
            return None
        if _quoted(each.text, proof.elsewhere):
            if ABSOLUTE.search(each.text):
                return f"needs a test at full speed in {each.tests}: {each.text}"
            return None
    return f"no test in {each.tests} for: {each.text}"


def _quoted(text: str, quotations: Iterable[str]) -> bool:
    return any(_says(text, quotation) for quotation in quotations)


def _says(text: str, quotation: str) -> bool:
    if quotation.endswith("..."):
        return text.startswith(quotation.removesuffix("..."))
    return text == quotation


def _exists(test: str) -> bool:
    """Whether a file has a test of this name: ``tests/test_acks.py::test_...``."""
    path, _, name = test.partition("::")
    if not (ROOT / path).exists():
        return False
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return any(isinstance(node, ast.FunctionDef) and node.name == name for node in tree.body)
