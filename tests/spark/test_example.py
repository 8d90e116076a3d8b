"""The example's report and notebook, with a history of webhooks."""

from __future__ import annotations

import io
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from django_pgqueue.models import Lake, Message
from example_project.inbox.report import page_path, plots
from tests.spark.conftest import archive_all, wait_for_commits

REPORT = "/admin/inbox/delivery/report/"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def webhooks(url: str) -> str:
    """Twelve handled deliveries, of two events and two repositories."""
    Message.objects.create_queue("github")
    for number in range(12):
        event = "push" if number % 3 else "star"
        repository = "octo/hello" if number < 9 else "octo/<world>"
        Message.objects.send(
            "github",
            {"action": "created", "repository": {"full_name": repository}},
            headers={"event": event},
        )
    archive_all("github")
    wait_for_commits(url)
    return url


def test_report_is_drawn_by_the_job_and_shown_by_the_admin(
    spark: Any, webhooks: str, tmp_path: Path, settings: Any, admin_client: Client
) -> None:
    settings.BASE_DIR = tmp_path
    out = io.StringIO()
    assert b"Nothing was drawn yet" in admin_client.get(REPORT).content

    call_command("report", stdout=out)

    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert "push 8 1" in lines
    assert "star 4 1" in lines
    assert "octo/hello 9 2" in lines
    html = admin_client.get(REPORT).content.decode()
    assert "12 deliveries, 0 of them failed" in html
    assert "Throughput. sent: " in html
    assert '<th scope="row">github</th><td class="number">12</td>' in html
    assert "octo/&lt;world&gt;" in html
    assert "<world>" not in html
    drawn = page_path().read_text()
    # Everything that a strict Content-Security-Policy would block.
    assert not re.findall(r"<script|<style|style=|\bon\w+=", drawn)


def test_report_of_nothing_says_what_to_do(spark: Any, url: str, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="run the demo first"):
        call_command("report", lake=tmp_path / "lake", output=tmp_path / "report.html")


def test_notebook_runs_from_its_first_cell_to_its_last(
    spark: Any,
    webhooks: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PGQUEUE_URL", webhooks)
    monkeypatch.setenv("LAKE", str(tmp_path / "lake"))

    runpy.run_path(str(ROOT / "example_project" / "notebook.py"))

    shown = capsys.readouterr().out
    assert "12 messages in" in shown
    assert "Nothing new to export" in shown
    assert Lake.objects.get().runs.get().rows == 12


def test_table_lines_up_its_columns() -> None:
    rows = [{"name": "a", "count": 10}, {"name": "longer", "count": 9}]

    assert plots.table(rows) == "name    count\na          10\nlonger      9"
    assert plots.table([]) == "(nothing)"


def test_plot_of_nothing_is_an_empty_plot() -> None:
    assert "<rect" not in plots.bars([])
    assert 'width="420.0"' in plots.bars([("a", 2), ("b", 1)])
