"""A change of the code tells at once which mutants no longer fit it."""

from __future__ import annotations

import pytest

from tests.acceptance.mutants import MUTANTS, ROOT


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_mutant_fits_the_code_of_today(mutant):
    for change in mutant.changes:
        assert (ROOT / change.path).read_text().count(change.old) == 1
        assert change.new != change.old
