"""Two trees compared: the table of a scenario."""

from __future__ import annotations

from benchmarks.turns import table


def test_a_ratio_is_the_median_of_those_of_the_rounds_with_the_least_and_the_most():
    samples = {
        "ours, this": [30.0, 10.0, 400.0],
        "ours, other": [10.0, 10.0, 100.0],
        "PGMQ, this": [15.0, 20.0, 100.0],
    }

    lines = table("read-1", "messages/s", "PGMQ", samples).splitlines()

    assert lines[0] == "| read-1 | messages/s | to PGMQ | this to other |"
    assert "| ours, this | 30 (10 - 400) | 2 (0.5 - 4) | 3 (1 - 4) |" in lines
    assert "| ours, other | 10 (10 - 100) | 0.667 (0.5 - 1) |  |" in lines
    assert "| PGMQ, this | 20 (15 - 100) |  |  |" in lines


def test_without_the_baseline_trees_are_compared():
    samples = {"ours, this": [3.14159], "ours, other": [6.28318]}

    lines = table("peers-latency-100", "ms, p50", "PgQueuer", samples).splitlines()

    assert "| ours, this | 3.14 |  | 0.5 |" in lines
