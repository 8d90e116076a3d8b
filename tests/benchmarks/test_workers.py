"""How many messages a worker has done, and in how many seconds."""

from __future__ import annotations

import select
import subprocess
import time
from collections.abc import Callable

import pytest

from benchmarks.workers import progress, stop


class Clock:
    """A clock that only sleeping advances."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def left(self, done: Callable[[float], float]) -> Callable[[], int]:
        """How many of 1,000 messages remain; ``done`` maps seconds to messages done."""
        return lambda: max(1000 - int(done(self.now - 100)), 0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_slow_start_does_not_hide_when_the_backlog_was_done(clock):
    done, seconds = progress(clock.left(lambda t: 1 if t < 0.1 else 1000 * t), 1000, 60)

    assert done == 1000
    assert seconds == pytest.approx(1, abs=0.05)


def test_messages_that_a_worker_keeps_do_not_count_nor_does_the_time_after_the_others(clock):
    done, seconds = progress(clock.left(lambda t: min(1000 * t, 900)), 1000, 60)

    assert done == 900
    assert seconds == pytest.approx(0.9, abs=0.1)


def test_a_slow_worker_is_cut_off(clock):
    done, seconds = progress(clock.left(lambda t: 10 * t), 1000, 4)

    assert done / seconds == pytest.approx(10, rel=0.1)
    assert clock.now == pytest.approx(104, abs=0.25)


def test_a_worker_that_does_nothing_has_done_nothing(clock):
    assert progress(clock.left(lambda t: 0), 1000, 1)[0] == 0


def test_what_a_worker_leaves_behind_ends_with_it():
    command = ["sh", "-c", "sleep 600 & exec sleep 600"]
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    assert worker.stdout is not None

    stop([worker])

    with worker.stdout as output:  # ends when no process has the pipe open
        assert select.select([output], [], [], 30)[0] == [output]
        assert output.read() == b""
