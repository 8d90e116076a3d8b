"""Charts of roll-ups, as seen and as read by screen readers."""

from __future__ import annotations

import datetime as dt
import html
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_pgqueue.admin.charts import Chart, Line, count_of, seconds_of, ticks
from django_pgqueue.models import Rollup, RollupRun
from tests.admin.conftest import page, rows

HOUR = dt.timedelta(hours=1)
NOW = dt.datetime(2026, 11, 20, 12, tzinfo=dt.timezone.utc)


def roll(queue: str = "orders", hours_ago: int = 0, **values: Any) -> Rollup:
    at = NOW - hours_ago * HOUR
    return Rollup.objects.create(queue_name=queue, seconds=3600, bucket=at, **values)


def plain(text: str) -> str:
    """A page's visible text."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())


@pytest.fixture
def viewer(staff: Callable[..., Client]) -> Client:
    return staff("view_rollup", "view_message")


def test_queue_is_shown_as_charts_with_a_table_for_each(viewer: Client) -> None:
    roll(hours_ago=1, sent=20, completed=18, failed=2, backlog=7, wait_p50=0.25, wait_p95=90)
    roll(sent=1500, completed=1500, busy=7200)

    text = page(viewer, "rollup", "charts", queue="orders")

    assert text.count("<figure>") == text.count('role="img"') == text.count("<details>") == 6
    assert "Throughput. sent: 1.5k last, 1.5k at most; completed: 1.5k last" in text
    assert "Utilisation. busy: 2 last, 2 at most" in text
    assert "<title>2026-11-20 11:00\nsent 20\ncompleted 18</title>" in text
    assert "2026-11-20 11:00 250 ms 1.5 min -" in plain(text)


def test_lists_tell_what_went_wrong_most(viewer: Client) -> None:
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


def test_all_queues_are_shown_as_a_table(viewer: Client) -> None:
    roll("mails", sent=5, completed=5)
    roll("orders", hours_ago=1, sent=1000, completed=900, failed=100, backlog=50, wait_p95=3)
    roll("orders", sent=500, backlog=2500, wait_p95=7200)

    text = plain(page(viewer, "rollup", "charts"))

    assert "mails 5 5 0 0 0 - - 0" in text
    assert "orders 1,500 900 100 0 10.0% 2,500 2 h - 0" in text


def test_dead_letters_are_told_beside_failures(viewer: Client) -> None:
    roll(sent=100, completed=30, failed=7, dead_lettered=63)

    assert "orders 100 30 7 63 70.0%" in plain(page(viewer, "rollup", "charts"))


def test_what_failed_is_drawn_over_what_was_retried(viewer: Client) -> None:
    roll(retried=5, failed=5)

    text = page(viewer, "rollup", "charts", queue="orders")

    trouble = text.partition("<h2>Failures</h2>")[2]
    assert 0 < trouble.find('class="line first"') < trouble.find('class="line bad"')


def test_span_that_is_not_over_is_marked(viewer: Client) -> None:
    now = dt.datetime.now(dt.timezone.utc).replace(minute=0, second=0, microsecond=0)
    Rollup.objects.create(queue_name="orders", seconds=3600, bucket=now, sent=1)

    assert "not over yet" in page(viewer, "rollup", "charts", queue="orders")


def test_page_asks_the_database_as_often_for_many_queues_as_for_one(viewer: Client) -> None:
    counts = []
    for number in range(1, 10, 8):
        for queue in range(number):
            roll(f"q{number}-{queue}", hours_ago=number)
        with CaptureQueriesContext(
            connection,
        ) as asked:
            page(viewer, "rollup", "charts")
        counts.append(len(asked))

    assert counts[0] == counts[1] <= 15


@pytest.mark.parametrize(
    "query", [{}, {"queue": "nowhere"}, {"queue": "\x00"}, {"spans": "x", "seconds": "-1"}]
)
def test_page_without_roll_ups_says_what_makes_them(viewer: Client, query: dict[str, str]) -> None:
    assert "pgqueue_rollup" in page(viewer, "rollup", "charts", **query)


def test_list_leads_to_the_charts(viewer: Client) -> None:
    assert reverse("admin:django_pgqueue_rollup_charts") in page(viewer, "rollup")


def test_spans_of_another_length_can_be_chosen(viewer: Client) -> None:
    roll(sent=1)
    Rollup.objects.create(queue_name="orders", seconds=86_400, bucket=NOW, sent=77)
    RollupRun.objects.create(
        seconds=86_400, from_at=NOW, to_at=NOW, below_xid=1, buckets=1, started_at=NOW
    )

    assert "sent: 77 last" in page(viewer, "rollup", "charts", queue="orders", seconds=86_400)
    assert "sent: 1 last" in page(viewer, "rollup", "charts", queue="orders")


def test_charts_are_for_those_who_may_view_roll_ups(staff: Callable[..., Client]) -> None:
    response = staff("view_queue").get(reverse("admin:django_pgqueue_rollup_charts"))

    assert response.status_code == 403


def test_line_has_a_gap_where_there_is_no_value() -> None:
    moments = [NOW + n * HOUR for n in range(5)]
    chart = Chart("", "", moments, 3600, [Line("p50", [1, 2, None, 4, None], "")], seconds_of)

    (drawn,) = chart.paths

    assert drawn["path"].count("M") == 2
    assert len(drawn["alone"]) == 1
    assert chart.columns[2]["title"] == "p50 -"


@pytest.mark.parametrize("most", [0, 0.003, 1, 7.2, 60, 61, 100, 3599, 86_400, 10**7])
@pytest.mark.parametrize("kind", [{}, {"whole": True}, {"timed": True}])
def test_axis_holds_the_largest_value_with_few_round_numbers(
    most: float, kind: dict[str, bool]
) -> None:
    found = ticks(most, **kind)

    assert found[0] == 0
    assert found[-1] >= most
    assert found[-2] <= most
    assert 2 <= len(found) <= 6
    worded = [(seconds_of if kind.get("timed") else count_of)(value) for value in found]
    assert len(set(worded)) == len(worded)


def test_the_list_of_roll_ups_says_times_with_their_unit(viewer: Client) -> None:
    roll("orders", sent=2, wait_p95=0.2494807, run_p95=90)
    roll("mails", sent=2)

    cells = {row[1]: row[-2:] for row in rows(viewer, "rollup")}

    assert cells == {"orders": ["249 ms", "1 min 30 s"], "mails": ["-", "-"]}
