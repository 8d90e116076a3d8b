"""The protocol's models hold within small bounds, and TLC finds the planted bugs."""

from __future__ import annotations

import pytest

from tests.protocol.__main__ import BUGS, MODELS, Model, check, missing

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.slow,
    pytest.mark.skipif(missing() is not None, reason=f"needs {missing()}"),
]


def named(model: Model) -> str:
    return f"{model.module}: {model.name}"


@pytest.mark.parametrize("model", MODELS, ids=named)
def test_a_model_of_the_protocol_holds_in_every_state(model):
    verdict = check(model)

    assert verdict.broken is None, verdict.output
    assert verdict.states > 100


@pytest.mark.parametrize("model", BUGS, ids=named)
def test_a_planted_bug_breaks_the_model(model):
    verdict = check(model)

    assert verdict.broken == model.breaks, verdict.output
