"""The scenarios of a topic, for one quick round."""

from __future__ import annotations

import pytest

from tests.benchmarks.processes import rehearse

TOPICS = ["subscriptions"]


@pytest.mark.slow
@pytest.mark.parametrize("topic", TOPICS)
def test_every_contestant_of_a_topic_runs_and_every_goal_has_a_figure(topic, django_db_setup):
    found = rehearse(topic, "--topic", seconds=600)

    assert found
    for name, scenario in found.items():
        assert scenario["failures"] == {}, name
        assert len(scenario["contestants"]) > 1, name
        assert scenario["judged"] == scenario["goals"], name
