"""Two trees compared: the table of a scenario."""

from __future__ import annotations

from benchmarks.turns import table


def test_a_ratio_is_the_median_of_those_of_the_rounds() -> None:
    samples = {
        "ours, this": [30.0, 10.0, 400.0],
        "ours, other": [10.0, 10.0, 100.0],
        "PGMQ, this": [15.0, 20.0, 100.0],
    }

    lines = table("read-1", "messages/s", samples).strip().splitlines()

    assert lines[0] == "| read-1 | messages/s | to PGMQ | this to other |"
    assert "| ours, this | 30 | 2.00 | 3.00 |" in lines
    assert "| ours, other | 10 | 0.67 |  |" in lines


def test_delays_have_a_table_without_pgmq() -> None:
    samples = {"ours, this": [3.14159], "ours, other": [6.28318]}

    lines = table("peers-latency-100", "ms, p50", samples).strip().splitlines()

    assert lines[0] == "| peers-latency-100 | ms, p50 | to PGMQ | this to other |"
    assert "| ours, this | 3.14 |  | 0.50 |" in lines
