"""The next tick of a cron expression, in every time zone."""

from __future__ import annotations

import datetime as dt
from itertools import takewhile
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim

from django_pgqueue.engine import cron
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.models import Schedule

UTC = dt.timezone.utc


def ticks(expression: str, zone: str, start: str, number: int) -> list[str]:
    """The next ticks after a local time, as local times with their offset."""
    at = dt.datetime.fromisoformat(start).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
    found = []
    for _ in range(number):
        at = cron.following(expression, zone, at)
        found.append(at.astimezone(ZoneInfo(zone)).strftime("%d %H:%M%z"))
    return found


def test_a_fixed_time_in_the_hour_that_is_skipped_runs_after_it():
    assert ticks("30 2 * * *", "Europe/Berlin", "2026-03-28T01:00", 3) == [
        "28 02:30+0100",
        "29 03:00+0200",
        "30 02:30+0200",
    ]


def test_a_fixed_time_in_the_hour_that_is_repeated_runs_once():
    assert ticks("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", 2) == [
        "25 02:30+0200",
        "26 02:30+0100",
    ]


def test_from_within_the_repeated_hour_no_tick_lies_before():
    # 02:10 for the second time: 02:30 has passed an hour ago.
    second = dt.datetime(2026, 10, 25, 1, 10, tzinfo=UTC)

    found = cron.following("30 2 * * *", "Europe/Berlin", second)

    assert found == dt.datetime(2026, 10, 26, 1, 30, tzinfo=UTC)


@pytest.mark.parametrize(("start", "count"), [("2026-03-29T00:00", 23), ("2026-10-25T00:00", 25)])
def test_every_hour_is_every_hour_that_there_is(start, count):
    day = start[8:10]
    found = ticks("0 * * * *", "Europe/Berlin", start, 30)

    # The first tick, at midnight, is not after the start.
    assert len([tick for tick in found if tick.startswith(f"{day} ")]) == count - 1


@pytest.mark.parametrize(
    "zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca"]
)
@pytest.mark.parametrize("expression", ["30 2 * * *", "*/20 * * * *", "0 4 1 * *", "5 1-3 * * 0"])
def test_one_after_the_other_is_the_librarys_own_iteration(zone, expression):
    start = dt.datetime(2026, 1, 1, tzinfo=UTC)
    end = start + dt.timedelta(days=365)
    own = CronSim(expression, start.astimezone(ZoneInfo(zone)))
    expected = list(takewhile(lambda t: t <= end, (t.astimezone(UTC) for t in own)))

    found, at = [], start
    while (at := cron.following(expression, zone, at)) <= end:
        found.append(at)

    assert found == expected
    assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    "expression", ["", "0 4 * *", "* * * * * *", "61 * * * *", "daily", "0 0 30 2 *"]
)
def test_what_is_no_expression_is_refused(expression):
    with pytest.raises(InvalidArgument, match="is not a cron expression"):
        cron.check(expression, "UTC")


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "../etc/passwd", "Europe"])
def test_an_unknown_zone_is_refused(zone):
    with pytest.raises(InvalidArgument, match="there is no time zone"):
        cron.check("0 4 * * *", zone)


def test_without_the_library_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(cron, "cronsim", None)

    with pytest.raises(InvalidArgument, match=r"pip install 'django-postgres-mq\[schedules\]'"):
        cron.check("0 4 * * *", "UTC")


def test_intervals_keep_their_grid():
    start = dt.datetime(2026, 1, 1, tzinfo=UTC)
    hour = dt.timedelta(hours=1)
    hourly = Schedule(interval=hour)

    assert hourly.following(start, start) == start + hour
    assert hourly.following(start, start + hour) == start + 2 * hour
    assert hourly.following(start, start + 5.5 * hour) == start + 6 * hour
