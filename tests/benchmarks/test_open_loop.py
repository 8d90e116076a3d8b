"""Open-loop load: when messages are sent, and where their delays start."""

from __future__ import annotations

import pytest

from benchmarks import notes
from benchmarks.open_loop import delays, moments, percentile


def test_senders_share_the_moments_and_keep_the_rate_together():
    due = moments(100.0, rate=4, count=6, senders=2)

    assert due == [[100.0, 100.5, 101.0], [100.25, 100.75, 101.25]]


def test_more_senders_than_messages_leave_some_idle():
    assert moments(0.0, rate=1, count=1, senders=3) == [[0.0], [], []]


def test_a_message_that_nobody_handled_has_waited_until_the_end():
    found = delays([1.0, 2.0, 3.0], {1.0: 0.5, 3.0: 0.1}, ended=10.0)

    assert found == [0.5, 8.0, 0.1]


@pytest.mark.parametrize(
    ("percent", "value"), [(0, 1), (50, 500), (99, 990), (99.9, 999), (99.95, 1000), (100, 1000)]
)
def test_a_percentile_is_a_value_that_was_measured(percent, value):
    assert percentile(range(1000, 0, -1), percent) == value


def test_a_percentile_of_nothing_is_refused():
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_notes_count_the_first_run_of_a_message(tmp_path, monkeypatch):
    file = tmp_path / "notes"
    monkeypatch.setenv(notes.VARIABLE, str(file))
    notes.note_delay(12.345678901234567)
    [(sent, late)] = notes.delays(file).items()

    notes.note_delay(sent)

    assert sent == 12.345678901234567
    assert notes.delays(file) == {sent: late}
    assert len(notes.read(file)) == 2
