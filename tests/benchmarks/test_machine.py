"""When a machine counts as busy, so that its figures are marked."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from benchmarks.machine import Machine, spent


def quiet(**changes: Any) -> Machine:
    values: dict[str, Any] = {"calibrations": [0.01] * 20, "others": [0.02] * 20}
    return Machine(**{**values, **changes})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"others": [0.02] * 15 + [0.5] * 5}, "in 5 of 20 looks"),
        ({"steal": 0.1}, "took 10% of"),
        ({"calibrations": [0.01] * 15 + [0.02] * 5}, "2.00 times as long"),
    ],
)
def test_each_sign_of_a_busy_machine_is_named(changes, said):
    [disturbance] = quiet(**changes).disturbances()

    assert said in disturbance


def test_one_look_at_the_wrong_moment_spoils_no_run():
    machine = quiet(others=[0.02] * 19 + [0.9], calibrations=[0.01] * 19 + [0.05])

    assert machine.disturbances() == []


def test_time_spent_is_that_of_a_process_and_its_ended_children():
    busy = "for n in range(3_000_000): pass"
    shell = f'python3 -c "{busy}"; echo done; read line'
    with subprocess.Popen(
        ["sh", "-c", shell], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        process.stdout.readline()

        assert spent([process.pid]) > 0
        assert spent([process.pid], without=process.pid) == 0

        process.stdin.close()
    assert spent([process.pid]) == 0
