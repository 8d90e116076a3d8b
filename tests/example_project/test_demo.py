"""The demo as a process of its own, with real HTTP and real consumers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, build_opener

import pytest

from django_pgqueue.embedded.server import EmbeddedServer
from example_project.inbox.demo import faults
from tests.waiting import until

ROOT = Path(__file__).resolve().parent.parent.parent
MANAGE = ROOT / "example_project" / "manage.py"
DEADLINE_SECONDS = 120

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment for a database server of the demo's own, which ends with its last user."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("DJANGO_SETTINGS_MODULE", "DATABASE_URL")
    }
    directory = tmp_path_factory.mktemp("demo")
    yield {
        **environment,
        "EMBEDDED_DIRECTORY": str(directory / "postgres"),
        "TMPDIR": str(directory),
    }
    with EmbeddedServer(directory / "postgres") as server:
        pass  # leaving the block waits for the server's end, which a keeper would not
    shutil.rmtree(server.home)  # for root, the server is outside pytest's private directory


@pytest.fixture
def start(environment: dict[str, str]) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(MANAGE), "demo", *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def run(start: Any, *arguments: str) -> tuple[int, str, str]:
    process = start(*arguments)
    stdout, stderr = process.communicate(timeout=DEADLINE_SECONDS)
    return process.returncode, stdout, stderr


def children_of(environment: dict[str, str]) -> list[int]:
    """The tethered processes that use this test's server, found by their environment."""
    mark = f"EMBEDDED_DIRECTORY={environment['EMBEDDED_DIRECTORY']}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended
            is_child = b"demo.tether" in (process / "cmdline").read_bytes()
            if is_child and mark in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


def test_the_demo_accounts_for_every_delivery_and_runs_again(start):
    for count in (60, 15):
        code, stdout, stderr = run(start, "--count", str(count), "--once", "--json")

        assert code == 0, stderr
        outcome = json.loads(stdout)
        assert outcome["adds_up"] is True
        assert (outcome["sent"], outcome["archived"], outcome["activities"]) == (count,) * 3
        assert (outcome["dead"], outcome["left"], outcome["refused"]) == (0, 0, 0)
        assert outcome["redelivered"] == outcome["duplicates"] == count // 10
        assert sum(places["archived"] for places in outcome["events"].values()) == count
        assert f"{count} sent = {count} archived + 0 dead letters + 0 left" in stderr
        # The planted faults of faults.plan.
        planted = list(faults.plan(count).values())
        assert outcome["retried"] == planted.count(faults.RETRY) > 0
        assert outcome["redriven"] == planted.count(faults.POISON) > 0
        assert outcome["recovered"] >= 1
        assert "was killed (kill -9) in the middle of a message" in stderr
        assert "PoisonMessage: this payload breaks the handler" in stderr
        assert "\r" not in stderr  # lines were printed, and no bar


def test_refused_and_dead_payloads_are_counted_apart(start, tmp_path):
    good = {"event": "star_gazing", "payload": {}}
    refused = {"event": "Not An Event", "payload": {}}
    failing = {"event": "push", "payload": {"ref": "and nothing else"}}
    payloads = tmp_path / "mine.jsonl"
    payloads.write_text("\n".join(json.dumps(line) for line in (good, refused, failing)))

    code, stdout, _ = run(start, "--payloads", str(payloads), "--count", "3", "--once", "--json")

    outcome = json.loads(stdout)
    assert code == 1
    assert outcome["adds_up"] is True
    assert (outcome["sent"], outcome["refused"]) == (2, 1)
    assert outcome["events"] == {
        "push": {"archived": 0, "dead": 1, "left": 0},
        "star_gazing": {"archived": 1, "dead": 0, "left": 0},
    }


def test_the_demo_goes_on_serving_feed_and_admin(start, environment):
    process = start("--count", "12")
    said = ""
    while "Ctrl-C" not in said:
        line = process.stdout.readline()
        assert line, said
        said += line

    # Its own poison message only, not the dead letter left by another run.
    assert "dead letters redriven: 1." in said
    feed, admin, user, password = re.search(
        r"Feed +(\S+)\nAdmin +(\S+) +as (\w+), password (\S+)", said
    ).groups()
    browser = build_opener(HTTPCookieProcessor())
    assert "Feed" in browser.open(feed).read().decode()
    token = re.search(r'csrfmiddlewaretoken" value="(\w+)"', browser.open(admin).read().decode())
    form = {"csrfmiddlewaretoken": token[1], "username": user, "password": password}
    page = browser.open(f"{admin}login/?next=/admin/", urlencode(form).encode()).read().decode()
    assert "Site administration" in page
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=DEADLINE_SECONDS)

    assert process.returncode == 0
    assert not children_of(environment)


def test_a_planted_fault_does_nothing_without_the_setting():
    assert faults.inject(len) is len


def test_a_payload_file_that_is_not_there_is_named(start):
    code, _, stderr = run(start, "--payloads", "nowhere.jsonl")

    assert code == 1
    assert "nowhere.jsonl" in stderr


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks into /proc")
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_the_demo(start, environment, ending):
    process = start("--count", "100000")
    until(lambda: len(children_of(environment)) == 3, DEADLINE_SECONDS)

    process.send_signal(ending)

    process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == (-ending if ending == signal.SIGKILL else 130)
    until(lambda: not children_of(environment), DEADLINE_SECONDS)
