"""The jobs as commands: exit codes, a final line, progress, and interruptions."""

from __future__ import annotations

import errno
import io
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_pgqueue.engine.interrupts import interrupts_held
from django_pgqueue.models import ArchivedMessage, ExportRun, Message, Rollup
from pyspark_pgqueue.__main__ import main
from pyspark_pgqueue.errors import InvalidOption, StoreFailed
from pyspark_pgqueue.jobs import executors
from pyspark_pgqueue.jobs import replay as replaying
from pyspark_pgqueue.jobs import rollup as rolling
from pyspark_pgqueue.jobs.progress import Bar
from pyspark_pgqueue.lake import files
from pyspark_pgqueue.lake.stores import explained
from pyspark_pgqueue.source.database import database_url
from tests.spark.conftest import export, wait_for_commits

Finish = Callable[..., list[int]]


@pytest.fixture
def job(spark: Any, url: str) -> Iterator[Callable[..., int]]:
    """Run a job by its command line; returns the exit code."""
    before = signal.getsignal(signal.SIGTERM)

    def run(name: str, *arguments: str) -> int:
        wait_for_commits(url)
        return main([name, "--url", url, *arguments])

    yield run
    signal.signal(signal.SIGTERM, before)


def interrupt(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def published(lake: str) -> list[Path]:
    return sorted((Path(lake) / "archive").rglob("*.parquet"))


def test_each_job_says_in_one_line_what_it_did(
    job: Callable[..., int], lake: str, finish: Finish, capsys: pytest.CaptureFixture[str]
) -> None:
    finish("orders", 12)
    lines = []

    for arguments in (
        ["export", lake],
        ["rollup"],
        ["verify", lake],
        ["replay", "--lake", lake, "--id", "again"],
        ["load", lake + "/archive", "--to", "orders", "--dry-run"],
    ):
        assert job(*arguments) == 0
        lines.append(capsys.readouterr().out.strip())

    assert [line.count("\n") for line in lines] == [0] * 5
    parts = [
        "12 messages in",
        "roll-ups computed, from",
        "agrees with",
        "12 messages sent",
        "dry run",
    ]
    assert [told in line for told, line in zip(parts, lines, strict=True)] == [True] * 5


def test_exit_code_tells_what_kind_of_failure_it_was(
    job: Callable[..., int], lake: str, finish: Finish, capsys: pytest.CaptureFixture[str]
) -> None:
    finish("orders", 3)
    assert job("export", lake) == 0
    assert job("verify", lake + "-unknown") == 1
    with pytest.raises(SystemExit) as told:
        job("export", "--max-files", "many", lake)
    assert told.value.code == 2
    ArchivedMessage.objects.update(attempts=7)
    assert job("verify", lake) == 3

    with pytest.raises(CommandError) as refused:
        call_command("pgqueue_verify", lake)
    assert refused.value.returncode == 3


def test_wrong_time_is_refused_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["rollup", "--url", "postgresql:///shop", "--from", "yesterday"])

    assert "'yesterday' is not a time: write ISO 8601, as in 2026-11-21" in capsys.readouterr().err


EXPECTED = [
    (["export", "{file}"], "Choose a directory."),
    (["export", "nowhere://bucket/lake"], "No installed package supports the lake's address"),
    (["export", "{new}", "--queue", "nowhere"], "There is no queue 'nowhere'"),
    (["replay", "--lake", "{new}"], "There is no lake at"),
    (["replay", "--lake", "{lake}", "--where", "colour = 1"], "--where is not a valid condition"),
    (["replay", "--lake", "{lake}", "--where", "state ==="], "--where is not a valid condition"),
    (["load", "{new}", "--to", "orders"], "Correct the path, or --format."),
    (["load", "{lake}/archive", "--to", "nowhere"], "there is no queue 'nowhere'. Create it"),
    (["rollup", "--url", "postgresql://nobody@127.0.0.1:1/x"], "Check its address"),
    (["rollup", "--url", "jdbc:postgresql://127.0.0.1:1/x"], "Check its address"),
    (["rollup", "--url", "shop"], "Write it as postgresql://"),
]


def test_expected_failure_is_one_line_that_says_what_to_do(
    job: Callable[..., int],
    lake: str,
    finish: Finish,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    finish("orders", 3)
    job("export", lake)
    (tmp_path / "file").touch()
    places = {"lake": lake, "new": str(tmp_path / "new"), "file": str(tmp_path / "file")}
    for arguments, advice in EXPECTED:
        given = [argument.format(**places) for argument in arguments]
        capsys.readouterr()

        assert job(*given) == 1

        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert advice in err
    assert job(*given, "--traceback") == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


@pytest.mark.parametrize(
    "address",
    ["postgresql://u:hun%ter2@h/db", "jdbc:postgresql://u:hunter2@[::1/db", "hunter2"],
)
def test_address_that_is_refused_is_in_no_error(address: str) -> None:
    with pytest.raises(InvalidOption, match="is not a PostgreSQL address") as raised:
        database_url(address)

    assert "ter2" not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "Free space there"),
        (OSError(errno.EROFS, os.strerror(errno.EROFS)), "Mount it for writing"),
        (PermissionError(errno.EACCES, os.strerror(errno.EACCES)), "Grant this user the right"),
    ],
)
def test_full_or_closed_disk_is_told_with_what_to_do(error: OSError, advice: str) -> None:
    with pytest.raises(StoreFailed, match=advice), explained("/lake"):
        raise error


def test_job_in_a_process_of_its_own_writes_no_more_than_its_line(
    job: Callable[..., int], url: str, lake: str, finish: Finish
) -> None:
    finish("orders", 3)
    job("export", lake)
    command = [sys.executable, "-m", "pyspark_pgqueue", "load", "--to", "nowhere", "--cores", "1"]

    failed = subprocess.run(
        [*command, f"{lake}/archive"],
        cwd=Path(__file__).resolve().parents[2],
        env={**os.environ, "PGQUEUE_URL": url},
        capture_output=True,
        text=True,
    )

    assert (failed.returncode, failed.stdout, failed.stderr.count("\n")) == (1, "", 1)
    assert "there is no queue 'nowhere'" in failed.stderr


def test_interrupted_export_leaves_nothing_half_published(
    job: Callable[..., int],
    lake: str,
    finish: Finish,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    finish("orders", 12)
    with monkeypatch.context() as patch:
        patch.setattr(executors, "on_executors", interrupt)
        assert job("export", lake) == 130
    assert "Interrupted." in capsys.readouterr().err
    assert published(lake) == []

    assert job("export", lake) == 0
    assert "(replaces failed run " in capsys.readouterr().out


def test_export_interrupted_while_it_publishes_publishes_the_rest(
    job: Callable[..., int], lake: str, finish: Finish, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish("orders", 12)
    finish("mails", 12)
    publish = files.publish

    def publish_half(path: str, add: Any) -> None:
        publish(path, add[:1])
        interrupt()
        publish(path, add[1:])

    monkeypatch.setattr(files, "publish", publish_half)

    assert job("export", lake) == 130

    assert ExportRun.objects.get().state == "DONE"
    assert len(published(lake)) == 2


def test_interrupted_rollup_changes_nothing(
    job: Callable[..., int], finish: Finish, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish("orders", 12)
    monkeypatch.setattr(rolling, "_value", interrupt)

    assert job("rollup") == 130

    assert not Rollup.objects.exists()


def test_interrupted_replay_names_the_id_to_go_on_with(
    job: Callable[..., int],
    lake: str,
    finish: Finish,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    finish("orders", 12)
    job("export", lake)
    with monkeypatch.context() as patch:
        patch.setattr(replaying, "time", SimpleNamespace(monotonic=time.monotonic, sleep=interrupt))
        assert job("replay", "--lake", lake, "--rate", "5") == 130
    name = capsys.readouterr().err.partition("--id ")[2].split()[0]
    sent = Message.objects.filter(queue__name="orders").count()

    assert job("replay", "--lake", lake, "--id", name) == 0

    assert 12 < sent < 24
    assert Message.objects.filter(queue__name="orders").count() == 24


def test_progress_counts_the_tasks_of_an_export(
    spark: Any, url: str, lake: str, finish: Finish
) -> None:
    finish("orders", 2000)
    seen: list[tuple[str, int, int]] = []

    export(spark, url, lake, rows_per_task=500, progress=lambda *step: seen.append(step))

    what, done, total = seen[-1]
    assert (what, done) == ("tasks", total)
    assert total >= 4
    assert {step[2] for step in seen} == {total}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bar_is_drawn_on_a_terminal_and_gone_before_a_line_that_stays() -> None:
    terminal = Terminal()
    bar = Bar(terminal)

    bar("tasks", 3, 12)
    bar.say("Run 1: done")

    _, drawn, said = terminal.getvalue().split("\r\x1b[K")
    assert drawn.startswith("[######..................]  25%  3 of 12 tasks")
    assert said == "Run 1: done\n"


def test_bar_is_not_drawn_into_a_log() -> None:
    log = io.StringIO()
    bar = Bar(log)

    bar("tasks", 3, 12)
    bar.clear()

    assert log.getvalue() == ""


def test_held_interrupt_comes_after_the_block() -> None:
    done = []

    def work() -> None:
        with interrupts_held():
            os.kill(os.getpid(), signal.SIGINT)
            done.append("the rest")
        done.append("never")

    with pytest.raises(KeyboardInterrupt):
        work()

    assert done == ["the rest"]
