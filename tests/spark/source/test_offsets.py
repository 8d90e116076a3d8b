"""Positions in the archive: Python, SQL and Arrow decide alike."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_pgqueue.lake.stream import within
from pyspark_pgqueue.source.offsets import EARLIEST, Offset, Snapshot, window


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    xmin = draw(st.integers(3, 30))
    running = draw(st.sets(st.integers(xmin, xmin + 8), max_size=4))
    if not running:
        return Snapshot.below(xmin)
    return Snapshot(min(running), max(running) + draw(st.integers(1, 3)), tuple(sorted(running)))


@given(snapshots())
def test_snapshot_survives_being_written(snapshot: Snapshot) -> None:
    assert Snapshot.parse(str(snapshot)) == snapshot


@given(snapshots(), snapshots(), st.tuples(st.integers(3, 40), st.integers(1, 99)))
def test_offset_survives_a_checkpoint(
    since: Snapshot, until: Snapshot, after: tuple[int, int]
) -> None:
    for offset in (Offset(since, system="7"), Offset(since, until, after)):
        assert Offset.parse(offset.as_dict()) == offset


def rows_between(sql: Callable[..., Any], start: Offset, end: Offset) -> set[tuple[int, int]]:
    found = sql(
        "SELECT archive_xid, id FROM (SELECT x AS archive_xid, n AS id "
        "FROM generate_series(1, 50) x, generate_series(1, 3) n) a WHERE " + window(start, end)
    )
    xids, ids = zip(*itertools.product(range(1, 51), range(1, 4)), strict=True)
    rows = pa.table({"archive_xid": xids, "id": ids}).filter(within(start, end, below=51))
    assert {(row["archive_xid"], row["id"]) for row in rows.to_pylist()} == set(found)
    return set(found)


def shows(snapshot: Snapshot, xid: int) -> bool:
    return xid < snapshot.xmax and xid not in snapshot.running


@pytest.mark.parametrize(
    ("old", "new"),
    [("0:0:", "20:20:"), ("10:14:10,12", "20:24:20,22"), ("10:14:10,12", "12:20:12,17")],
)
def test_steps_cover_what_became_visible_once(sql: Callable[..., Any], old: str, new: str) -> None:
    since, until = Snapshot.parse(old), Snapshot.parse(new)
    cuts = [(13, 2), (15, 1), (19, 3)]
    stops = [Offset(since), *(Offset(since, until, cut) for cut in cuts), Offset(until)]

    steps = [rows_between(sql, low, high) for low, high in itertools.pairwise(stops)]

    every = {(x, n) for x in range(1, 51) for n in range(1, 4)}
    expected = {(x, n) for x, n in every if shows(until, x) and not shows(since, x)}
    assert set().union(*steps) == expected == rows_between(sql, Offset(since), Offset(until))
    assert sum(map(len, steps)) == len(expected)


@given(snapshots(), st.integers(0, 45))
def test_past_a_transaction_all_before_it_is_shown_and_nothing_else(
    snapshot: Snapshot, below: int
) -> None:
    past = snapshot.past(below)

    for xid in range(50):
        assert shows(past, xid) == (shows(snapshot, xid) or xid < below)
    assert Snapshot.parse(str(past)) == past
    assert past.xmin == min(past.running, default=past.xmax)


@pytest.mark.parametrize(
    ("offset", "purged_below", "lacks"),
    [
        (Offset(Snapshot.below(10)), 10, False),
        (Offset(Snapshot.below(10)), 11, True),
        (Offset(Snapshot.parse("8:10:8")), 9, True),
        (Offset(Snapshot.parse("8:10:8")), 8, False),
        (Offset(EARLIEST), 99, False),
        (Offset(EARLIEST, Snapshot.below(50), (30, 1)), 30, False),
        (Offset(EARLIEST, Snapshot.below(50), (30, 1)), 31, True),
    ],
)
def test_purge_is_a_loss_where_it_took_what_was_not_delivered(
    offset: Offset, purged_below: int, lacks: bool
) -> None:
    assert offset.may_lack(purged_below) is lacks
