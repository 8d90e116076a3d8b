"""A fixed load: its cells and schedules, the figures of a half, and the page with its picture."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.__main__ import parser
from benchmarks.load import command, page, plan
from benchmarks.load.measure import figures
from benchmarks.load.observe import Reading
from benchmarks.load.picture import svg

HALF = {
    "ms, p50": 2.0, "ms, p99": 9.0, "ms, stall": 30.0, "% at the end": 100.0,
    "log bytes": 1600.0, "flushes": 2.0, "ms, late start": 0.1, "server µs": 700.0,
    "client busy": 0.4, "server busy": 0.3,
    "waits": {"IO: WalSync": 0.9, "running": 0.1},
}  # fmt: skip


def cell(system: str, connections: int, **changes: Any) -> dict[str, Any]:
    of = {"system": system, "connections": connections, "backlog": 0, "body": "200 B"}
    return {**of, "loadavg": 0.3, "plain": dict(HALF), "snapshot": dict(HALF), **changes}


def results(*cells: dict[str, Any], planned: int | None = None) -> dict[str, Any]:
    about = {
        "date": "2026-01-01", "machine": {"cores": 2}, "pinned": True, "disturbed": [],
        "versions": {"pgqueuer": "1.6"}, "server": {"server_version": "18.4"},
        "payloads": {"200 B": "200 bytes"},
    }  # fmt: skip
    options = {"seconds": 20, "rate": 200, "listeners": 1}
    return {
        "about": about, "options": options, "cells": list(cells),
        "planned": planned or len(cells), "partial": bool(planned and planned > len(cells)),
    }  # fmt: skip


def options(*arguments: str) -> Any:
    found = parser().parse_args(["run", "load", *arguments])
    plan.complete(found)
    return found


def test_cells_are_all_combinations_and_systems_take_turns():
    found = plan.cells(options("--connections", "1,4", "--backlog", "0,1_000", "--bodies", "200 B"))

    assert [each.system for each in found[:4]] == list(plan.SYSTEMS)
    assert len(found) == len(set(found)) == 4 * 2 * 2


def test_a_cross_varies_one_thing_at_a_time():
    found = plan.cells(options("--cross", "--peers", "ours", "--connections", "1,16,64"))

    assert [(each.body, each.backlog, each.connections) for each in found] == [
        ("200 B", 0, 1),
        ("200 B", 0, 16),
        ("200 B", 0, 64),
        ("200 B", 1_000_000, 16),
        ("webhooks", 0, 16),
    ]


@pytest.mark.parametrize(
    "given", ["--peers=Kafka", "--connections=0", "--backlog=-1", "--seconds=0", "--bodies=huge"]
)
def test_an_impossible_load_is_refused(given, capsys):
    with pytest.raises(SystemExit):
        options(given)

    assert given.partition("=")[0] in capsys.readouterr().err


def test_schedules_keep_the_rate_and_are_the_same_each_time():
    schedules = plan.moments(200, 30, 16)

    assert schedules == plan.moments(200, 30, 16)
    assert len({tuple(own) for own in schedules}) == 16
    assert sum(map(len, schedules)) == pytest.approx(200 * 30, rel=0.1)
    assert all(own == sorted(own) and own[-1] < 30 for own in schedules)


def reading(moment: float, **changes: Any) -> Reading:
    values: dict[str, Any] = {
        "server_ns": 0, "wal": 0, "flushes": 0, "busy": [(0, 0), (0, 0)], "waits": Counter(),
        "client": 0.0,
    }  # fmt: skip
    return Reading(moment, **{**values, **changes})


def test_figures_are_those_of_the_messages_of_a_half():
    # Due, start, end, empty reads: one connection is late by itself, the other one never ends.
    turns = [[[0.0, 0.0, 1.0, 0], [0.5, 1.0, 4.0, 2]], [[3.0, 3.5, 3.6, 0]]]
    after = reading(
        15, server_ns=6_000_000, wal=900, flushes=6, busy=[(1, 5), (5, 5)], waits=Counter(a=3, b=1)
    )

    found = figures(turns, [0.0, 0.5, 3.0, 4.5], reading(10), after, start=10, seconds=10)

    assert found["messages"] == 3
    assert (found["server µs"], found["log bytes"], found["flushes"]) == (2000, 300, 2)
    assert (found["ms, p50"], found["ms, p99"]) == (1000, 5500)
    assert found["ms, stall"] == pytest.approx(2600)
    assert found["% at the end"] == 100
    assert found["ms, late start"] == 500
    assert (found["server busy"], found["client busy"]) == (0.2, 1)
    assert found["waits"] == {"a": 0.75, "b": 0.25}


def test_a_load_that_the_client_could_not_offer_is_not_shown_as_the_servers():
    full = cell("PGMQ", 64)
    full["plain"] |= {"client busy": 0.99, "ms, late start": 80.0, "ms, p50": 123.0}
    found = results(cell("ours", 64), full)

    text = page.section(found, "load")

    assert "client full" in page.line(full)
    assert "123" not in text
    [lines] = [line for line in text.splitlines() if line.startswith("| 64 | PGMQ")]
    assert "client full" in lines
    assert page.picture(found).count("<circle") == 6  # of ours


def test_a_full_core_that_starts_every_turn_in_time_is_enough():
    found = cell("ours", 1)
    found["plain"]["client busy"] = 0.99

    assert page.reason(found) is None


def test_a_failed_cell_says_why():
    failed = {"system": "PGMQ", "connections": 1, "backlog": 0, "body": "200 B", "failed": "gone"}

    assert "| 1 | PGMQ | failed: gone |" in page.section(results(failed), "load")
    ElementTree.fromstring(page.picture(results(failed)))


def test_a_partial_result_says_so(tmp_path):
    found = results(cell("ours", 1), planned=4)
    whole = results(cell("ours", 1))

    command.save(found, tmp_path / "load.json")
    page.write_results(found, tmp_path / "load.md")

    assert json.loads((tmp_path / "load.json").read_text())["partial"]
    said = "**Partial**: the run was interrupted after 1 of 4 cells."
    assert said in (tmp_path / "load.md").read_text()
    assert said in page.section(found, "load")
    assert "Partial" not in page.section(whole, "load")


def test_a_busy_machine_and_shared_cores_are_named():
    found = results(cell("ours", 1))
    found["about"] |= {"disturbed": ["others used it"], "pinned": False}

    text = page.section(found, "load")

    assert "others used it" in text
    assert "Not pinned" in text


def test_a_rate_that_does_not_hold_stands_out():
    slow = cell("ours", 1)
    slow["snapshot"]["% at the end"] = 60.0

    [line] = [row for row in page.section(results(slow), "x").splitlines() if "| ours |" in row]

    assert line.count("100 %") == 1
    assert line.count("**60 %**") == 1


def test_the_page_is_written_from_the_results_and_twice_is_the_same(tmp_path, monkeypatch):
    (tmp_path / "_static").mkdir()
    docs = tmp_path / "performance.md"
    docs.write_text(f"before\n{page.BEGIN}\nearlier figures\n{page.END}\nafter\n")
    monkeypatch.setattr(page, "DOCS", tmp_path)
    command.save(results(cell("ours", 1), cell("ours", 4)), tmp_path / "load.json")
    given = parser().parse_args(["page", str(tmp_path / "load.json")])

    page.command(given)
    first = docs.read_text()
    page.command(given)

    assert docs.read_text() == first
    assert first.startswith(f"before\n{page.BEGIN}\n")
    assert first.endswith(f"{page.END}\nafter\n")
    assert "earlier figures" not in first
    assert "| 4 | ours | 700 |" in first
    assert "PostgreSQL 18.4, PgQueuer 1.6." in first
    assert "| 30%, 40% | 0.3 |" in (tmp_path / "load.md").read_text()


def test_the_picture_is_well_formed_in_both_themes():
    lines = [cell(system, n) for system in ("ours", "a < b & c") for n in (1, 4, 256)]

    drawn = page.picture(results(*lines))

    root = ElementTree.fromstring(drawn)
    assert root.attrib["viewBox"]
    style = root.find("{http://www.w3.org/2000/svg}style")
    assert style is not None
    assert style.text is not None
    light, dark = style.text.split("@media (prefers-color-scheme: dark)")
    for name in ("--line0", "--line1", "--line2", "--line3", "--grid", "fill:"):
        assert name in light
        assert name in dark
    assert drawn.count("<polyline") == 2 + 2 * 6
    assert "a &lt; b &amp; c" in drawn


def test_a_picture_of_nothing_is_well_formed():
    ElementTree.fromstring(page.picture(results()))
    ElementTree.fromstring(svg([], [], "connections"))
