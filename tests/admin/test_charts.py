"""Charts of roll-ups, as seen and as read by screen readers."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_pgqueue.admin.charts import Chart, Line, count_of, ticks
from django_pgqueue.models import Rollup, RollupRun
from django_pgqueue.templatetags.pgqueue_admin import lapse
from tests.admin.conftest import page, plain, rows

HOUR = dt.timedelta(hours=1)
NOW = dt.datetime(2026, 11, 20, 12, tzinfo=dt.timezone.utc)


def roll(queue: str = "orders", hours_ago: int = 0, **values: Any) -> Rollup:
    at = NOW - hours_ago * HOUR
    return Rollup.objects.create(queue_name=queue, seconds=3600, bucket=at, **values)


@pytest.fixture
def viewer(staff: Callable[..., Client]) -> Client:
    return staff("view_rollup", "view_message")


def test_queue_is_shown_as_charts_with_a_table_for_each(viewer):
    roll(hours_ago=1, sent=20, completed=18, failed=2, backlog=7, wait_p50=0.25, wait_p95=90)
    roll(sent=1500, completed=1500, busy=7200)

    text = page(viewer, "rollup", "charts", queue="orders")

    assert re.findall(r"<figcaption><h2>(.*?)</h2>", text) == [
        *("Throughput", "Depth", "Failures", "Wait times", "Busy workers"),
    ]
    assert text.count("<figure>") == text.count('role="img"') == 5
    assert "Throughput. in: 1,500 last, 1,500 at most; out: 1,500 last" in text
    assert "Busy workers. busy: 2 last, 2 at most" in text
    assert "<title>2026-11-20 11:00\nin 20\nout 20</title>" in text
    assert "2026-11-20 11:00 250 ms 1.5 min -" in plain(text)


def test_a_queue_without_work_has_no_charts(viewer):
    roll(sent=0)

    assert "<figure>" not in page(viewer, "rollup", "charts", queue="orders")


def test_lists_tell_what_went_wrong_most(viewer):
    roll(hours_ago=1, top_errors=[{"error": "<b>: 1", "count": 3}], poison=[])
    roll(
        top_errors=[{"error": "KeyError", "count": 4}, {"error": "<b>: 1", "count": 1100}],
        poison=[{"id": 71, "read_ct": 9, "state": "FAILED"}],
        top_group={"group": "customer-5", "count": 12},
    )

    text = page(viewer, "rollup", "charts", queue="orders")

    assert "1,103 <b>: 1 4 KeyError" in plain(text)
    assert "<b>: 1" not in text
    assert "9 times message 71 FAILED" in plain(text)
    assert reverse("admin:django_pgqueue_message_change", args=[71]) in text
    assert "12 customer-5" in plain(text)


def test_all_queues_are_shown_as_a_table(viewer):
    roll("mails", sent=5, completed=5)
    roll("orders", hours_ago=1, sent=1000, completed=900, failed=100, backlog=50, wait_p95=3)
    roll("orders", sent=500, backlog=2500, wait_p95=7200)

    text = plain(page(viewer, "rollup", "charts"))

    assert "mails 5 5 0 0 0 0" in text
    assert "orders 1,500 900 100 0 10% 2,500 2 h 0" in text


def test_dead_letters_are_told_beside_failures(viewer):
    roll(sent=100, completed=30, failed=7, dead_lettered=63)

    assert "orders 100 30 7 63 70%" in plain(page(viewer, "rollup", "charts"))


def test_what_failed_is_drawn_over_what_was_retried(viewer):
    roll(retried=5, failed=5)

    text = page(viewer, "rollup", "charts", queue="orders")

    trouble = text.partition("<h2>Failures</h2>")[2]
    assert 0 < trouble.find('class="line first"') < trouble.find('class="line bad"')


def test_span_that_is_not_over_is_marked(viewer):
    now = dt.datetime.now(dt.timezone.utc).replace(minute=0, second=0, microsecond=0)
    Rollup.objects.create(queue_name="orders", seconds=3600, bucket=now, sent=1)

    assert "not over yet" in page(viewer, "rollup", "charts", queue="orders")


def test_page_asks_the_database_as_often_for_many_queues_as_for_one(viewer):
    counts = []
    for number in range(1, 10, 8):
        for queue in range(number):
            roll(f"q{number}-{queue}", hours_ago=number)
        with CaptureQueriesContext(connection) as asked:
            page(viewer, "rollup", "charts")
        counts.append(len(asked))

    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    "query", [{}, {"queue": "nowhere"}, {"queue": "\x00"}, {"spans": "x", "seconds": "-1"}]
)
def test_page_without_roll_ups_says_what_makes_them(viewer, query):
    assert "pgqueue_rollup" in page(viewer, "rollup", "charts", **query)


def test_list_leads_to_the_charts(viewer):
    assert reverse("admin:django_pgqueue_rollup_charts") in page(viewer, "rollup")


def test_spans_of_another_length_can_be_chosen(viewer):
    roll(sent=1)
    Rollup.objects.create(queue_name="orders", seconds=86_400, bucket=NOW, sent=77)
    RollupRun.objects.create(
        seconds=86_400, from_at=NOW, to_at=NOW, below_xid=1, buckets=1, started_at=NOW
    )

    assert "in: 77 last" in page(viewer, "rollup", "charts", queue="orders", seconds=86_400)
    assert "in: 1 last" in page(viewer, "rollup", "charts", queue="orders")


def test_line_has_a_gap_where_there_is_no_value():
    moments = [NOW + n * HOUR for n in range(5)]
    chart = Chart("", "", moments, 3600, [Line("p50", [1, 2, None, 4, None], "")], lapse)

    (drawn,) = chart.paths

    assert drawn["path"].count("M") == 2
    assert len(drawn["alone"]) == 1
    assert chart.columns[2].cells == ["-"]


@pytest.mark.parametrize("most", [0, 0.003, 1, 7.2, 60, 61, 100, 3599, 86_400, 10**7])
@pytest.mark.parametrize("kind", [{}, {"whole": True}, {"timed": True}])
def test_axis_holds_the_largest_value_with_few_round_numbers(most, kind):
    found = ticks(most, **kind)

    assert found[0] == 0
    assert found[-1] >= most
    assert found[-2] <= most
    assert 2 <= len(found) <= 6
    worded = [(lapse if kind.get("timed") else count_of)(value) for value in found]
    assert len(set(worded)) == len(worded)


def test_the_list_of_roll_ups_says_times_with_their_unit(viewer):
    roll("orders", sent=2, wait_p95=0.2494807, run_p95=90)
    roll("mails", sent=2)

    cells = {row["queue_name"]: (row["waited"], row["ran"]) for row in rows(viewer, "rollup")}

    assert cells == {"orders": ("249 ms", "1.5 min"), "mails": ("-", "-")}


def test_counts_in_the_list_of_roll_ups_have_separators_and_the_names_of_their_columns(viewer):
    roll("orders", sent=1234567)

    text = page(viewer, "rollup")

    assert '<td class="field-sent" data-label="Sent">1,234,567</td>' in text
    assert '<td class="field-waited" data-label="Wait p95">-</td>' in text


@pytest.mark.parametrize("seconds", [60, 3600, 7200, 86_400])
def test_the_times_under_a_chart_are_round(seconds):
    start = NOW.replace(hour=3, minute=7 if seconds < 3600 else 0)
    moments = [start + n * dt.timedelta(seconds=seconds) for n in range(60)]
    chart = Chart("", "", moments, seconds, [Line("in", [1] * 60, "")], count_of)

    words = [word for _x, word in chart.labels]

    assert 3 <= len(words) <= 7
    assert all(re.fullmatch(r"\d\d:(00|15|30|45)|\d+ Nov|\d+ Dec|\d+ Jan", word) for word in words)


def test_the_times_under_a_chart_of_seconds_differ():
    start = NOW.replace(hour=3, minute=0, second=0)
    moments = [start + n * dt.timedelta(seconds=10) for n in range(60)]

    chart = Chart("", "", moments, 10, [Line("in", [1] * 60, "")], count_of)

    assert [word for _x, word in chart.labels] == ["03:00", "03:05"]


def test_a_sum_of_a_span_that_is_not_over_is_not_drawn():
    """It would be drawn as a fall. A level is drawn to the end."""
    moments = [NOW + n * HOUR for n in range(3)]
    sums, level = (Line("in", [9, 9, 1], "", adds=True), Line("depth", [9, 9, 1], ""))
    chart = Chart("", "", moments, 3600, [sums, level], count_of, running=True)

    drawn = [each["path"].count("L") for each in chart.paths]

    assert drawn == [1, 2]
    assert chart.columns[-1].running
