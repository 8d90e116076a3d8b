"""The pipeline on selected clusters: pytest tests/spark/clusters --clusters=standalone."""

from __future__ import annotations

from pathlib import Path

import pytest

from django_pgqueue.management.jobs import url_of
from tests.spark.clusters.story import KINDS, missing, play

pytestmark = [pytest.mark.slow, pytest.mark.spark]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """The kinds selected by the option, if this Python has their requirements."""
    kind = str(request.param)
    if kind not in request.config.getoption("clusters").split(","):
        pytest.skip(f"takes minutes: --clusters={kind} plays it")
    if lacking := missing(kind):
        pytest.skip(f"{kind} needs {', '.join(lacking)}")
    return kind


def test_everything_arrives_once_whatever_is_killed(
    kind: str, committed: None, tmp_path: Path
) -> None:
    outcomes = play(kind, url_of("default"), tmp_path / kind)

    assert len(outcomes) == 6
    assert [each for each in outcomes if not each.whole] == []
    assert sum(each.kills for each in outcomes) == 4
