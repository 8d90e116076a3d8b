"""When a machine counts as busy, so that its figures are marked."""

from __future__ import annotations

import os
from typing import Any

import pytest

from benchmarks.machine import Machine, Process, Times, spent


def quiet(**changes: Any) -> Machine:
    values: dict[str, Any] = {"load": 0.2, "calibrations": [0.01] * 20, "others": [0.02] * 20}
    return Machine(cores=2, **{**values, **changes})


def test_a_quiet_machine_has_no_disturbances() -> None:
    assert quiet().disturbances() == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"load": 1.6, "others": []}, "load average of 1.6"),
        ({"others": [0.02] * 15 + [0.5] * 5}, "in 5 of 20 looks"),
        ({"steal": 0.1}, "took 10% of"),
        ({"calibrations": [0.01] * 15 + [0.02] * 5}, "2.00 times as long"),
    ],
)
def test_each_sign_of_a_busy_machine_is_named(changes: dict[str, Any], said: str) -> None:
    [disturbance] = quiet(**changes).disturbances()

    assert said in disturbance


def test_a_load_average_of_before_does_not_outweigh_what_is_seen_now() -> None:
    assert quiet(load=6.0).disturbances() == []


def test_one_look_at_the_wrong_moment_spoils_no_run() -> None:
    machine = quiet(others=[0.02] * 19 + [0.9], calibrations=[0.01] * 19 + [0.05])

    assert machine.disturbances() == []


def test_times_count_waiting_for_the_disk_as_idle() -> None:
    times = Times.parse("cpu  100 0 200 1000 50 0 0 25 0 0")

    assert times == Times(total=13.75, idle=10.5, steal=0.25)


def test_a_process_counts_with_its_ended_children_whatever_its_name() -> None:
    stat = "7 (a) b) S 3 7 7 0 -1 0 0 0 0 0 100 50 30 20 20 0 1"

    assert Process.parse(stat) == Process(parent=3, seconds=200 / os.sysconf("SC_CLK_TCK"))


def test_time_spent_is_that_of_a_whole_family_but_for_the_one_left_out() -> None:
    processes = {
        1: Process(0, 100.0),
        2: Process(1, 1.0),
        3: Process(2, 2.0),
        4: Process(2, 4.0),
        5: Process(1, 50.0),
    }

    assert spent(processes, [2]) == 7.0
    assert spent(processes, [2], without=[4]) == 3.0
    assert spent(processes, [9]) == 0.0
