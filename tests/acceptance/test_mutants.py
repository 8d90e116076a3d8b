"""The mutant runner: it distinguishes survivors from caught mutants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.acceptance.mutants import Change, Laboratory, Mutant, laboratory, table

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]

TEST = "tests/test_acks.py"
HARMLESS = Mutant(
    "harmless",
    "a comment says something else",
    (TEST,),
    (Change("django_pgqueue/engine/settle/fence.sql", "P6.", "P6!"),),
)


@pytest.fixture(scope="module")
def bench() -> Iterator[Laboratory]:
    with laboratory() as found:
        yield found


def test_a_harmless_mutant_is_reported_as_a_survivor(bench):
    verdict = bench.examine(HARMLESS, 120)

    assert verdict.catcher is None
    assert " passed" in verdict.output
    assert "| harmless | a comment says something else | **survived** |" in table([verdict])
    assert "P6." in (bench.root / HARMLESS.changes[0].path).read_text()


def test_a_planted_bug_is_caught_by_the_test_that_fails(bench):
    never = "    if policy is AckPolicy.ACK_FIRST:\n        return None\n"
    broken = Change("django_pgqueue/acks.py", never, "")
    text = (bench.root / broken.path).read_text()

    verdict = bench.examine(replace(HARMLESS, name="broken", changes=(broken,)), 120)

    assert verdict.catcher is not None
    assert verdict.catcher.startswith(f"{TEST}::test_")
    assert (bench.root / broken.path).read_text() == text


def test_a_test_that_fails_without_the_mutant_catches_nothing(bench):
    broken = bench.root / "tests/test_broken.py"
    broken.write_text("def test_broken():\n    assert False\n")

    with pytest.raises(RuntimeError, match="fails without harmless too"):
        bench.examine(replace(HARMLESS, tests=("tests/test_broken.py",)), 120)


def test_a_mutant_whose_text_is_gone_is_an_error(bench):
    gone = replace(HARMLESS, changes=(Change(HARMLESS.changes[0].path, "no such text", ""),))

    with pytest.raises(ValueError, match="stands 0 times"):
        bench.examine(gone)
