"""Behaviour shared by the commands: failures, tables, durations, progress."""

from __future__ import annotations

import argparse
import datetime as dt
import io
from typing import Any

import psycopg
import pytest
from django.core.management import CommandError, load_command_class
from django.core.management.base import OutputWrapper
from django.db import OperationalError, connections

from django_pgqueue.management import base, progress_bar
from django_pgqueue.management.jobs import url_of
from django_pgqueue.management.progress_bar import ProgressBar
from django_pgqueue.models import Message
from tests.conftest import run_sql
from tests.management.calling import Terminal, call, call_json

COMMANDS = [
    ("pgqueue_queues", ["nothing"]),
    ("pgqueue_send", ["nothing", "1"]),
    ("pgqueue_peek", ["nothing"]),
    ("pgqueue_purge", ["nothing"]),
    ("pgqueue_drop", ["nothing"]),
    ("pgqueue_redrive", ["nothing"]),
    ("pgqueue_replay", ["nothing"]),
    ("pgqueue_create", ["orders", "--dead-letter-queue", "nothing"]),
    ("pgqueue_alter", ["nothing", "--limit", "5"]),
    ("pgqueue_maintain", ["nothing"]),
    ("pgqueue_partition", ["nothing", "--cancel"]),
    ("pgqueue_health", ["nothing"]),
]


@pytest.mark.parametrize(("command", "arguments"), COMMANDS)
def test_a_queue_that_does_not_exist_is_named_by_each_command(db, command, arguments):
    with pytest.raises(CommandError, match="There is no queue 'nothing' in database 'default'"):
        call(command, *arguments)


@pytest.mark.django_db(databases=["default", "other"])
def test_each_works_on_the_database_that_is_named():
    call("pgqueue_create", "orders", "--database", "other")
    call("pgqueue_send", "orders", "7", "--database", "other")

    [queue] = call_json("pgqueue_queues", "--database", "other")
    [message] = call_json("pgqueue_peek", "orders", "--database", "other")

    assert (queue["queue_name"], queue["length"], message["body"]) == ("orders", 1, 7)
    assert call_json("pgqueue_queues") == []
    assert call_json("pgqueue_purge", "orders", "--database", "other", "--no-input")["purged"] == 1
    call("pgqueue_drop", "orders", "--database", "other", "--no-input")
    assert Message.objects.using("other").list_queues() == []


@pytest.mark.parametrize("command", ["pgqueue_queues", "pgqueue_health", "pgqueue_rollup"])
def test_a_database_that_does_not_exist_is_refused_with_those_that_do(db, command):
    with pytest.raises(CommandError, match=r"invalid choice: 'nowhere'.*default"):
        call(command, "--database", "nowhere")


@pytest.mark.parametrize("command", ["pgqueue_queues", "pgqueue_health"])
def test_missing_tables_are_named_with_the_command_that_creates_them(db, command):
    run_sql("ALTER TABLE pgqueue_queue RENAME TO elsewhere")

    with pytest.raises(CommandError, match=r"manage\.py migrate --database default"):
        call(command)


@pytest.mark.parametrize("error", [OperationalError, psycopg.OperationalError])
def test_a_database_that_does_not_answer_is_one_line_with_advice(db, monkeypatch, error):
    """A job uses connections that are not Django's."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise error("connection refused")

    monkeypatch.setattr(Message.objects, "metrics_all", refuse)

    with pytest.raises(CommandError, match=r"connection refused\nSee whether the server"):
        call("pgqueue_queues")


@pytest.mark.parametrize(
    "options",
    [
        {"pool": True},
        {"server_side_binding": True},
        {"isolation_level": 2},
        {"application_name": "x"},
    ],
)
def test_a_job_reaches_the_database_whatever_is_for_django_alone(db, monkeypatch, options):
    database = connections["default"].settings_dict
    monkeypatch.setitem(database, "OPTIONS", {**database["OPTIONS"], **options})

    with psycopg.connect(url_of("default")) as connection:
        assert connection.info.dbname == database["NAME"]
        named = connection.info.parameter_status("application_name")
    # A consumer that ran in this process has set a fallback.
    fallback = database["OPTIONS"].get("fallback_application_name", "")
    assert named == options.get("application_name", fallback)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("90", 90), ("90s", 90), ("1.5h", 5400), ("1d 2 h", 93_600), ("2d", 172_800)],
)
def test_a_duration_is_seconds_or_has_a_unit(text, seconds):
    assert base.duration(text) == dt.timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "soon", "-5", "1y", "1 h 5", "9" * 400 + "w", "٣"])
def test_an_invalid_duration_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="is not a duration: write 30"):
        base.duration(text)


def test_a_table_lets_no_message_steer_the_terminal():
    assert base.table({"group": "<"}, [["\x1b[2Jé\n"]]) == ["group", "?[2Jé?"]


def test_a_terminal_gets_a_bar_that_is_gone_at_the_end():
    out = Terminal()

    with ProgressBar(OutputWrapper(out), "sent") as bar:
        bar.show(10, total=40)

    drawn, wiped = out.getvalue().split("\r\x1b[K")[1:]
    assert drawn.startswith(f"[{'#' * 6}{'.' * 18}]  25%  10 of 40 sent, ")
    assert wiped == ""


def test_elsewhere_a_line_is_written_now_and_then(monkeypatch):
    now = 100.0
    monkeypatch.setattr(progress_bar.time, "monotonic", lambda: now)
    out = io.StringIO()

    with ProgressBar(OutputWrapper(out), "sent") as plain:
        for done in range(0, 3100, 100):  # a tick per second
            plain.show(done)
            now += 1

    assert out.getvalue() == "1,000 sent, 100/s\n2,000 sent, 100/s\n3,000 sent, 100/s\n"


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("runconsumer", "--graceful-timeout"),
        ("runconsumer", "--max-runtime"),
        ("runconsumer", "--database-timeout"),
        ("pgqueue_health", "--dead-after"),
        ("pgqueue_doctor", "--old-snapshot"),
    ],
)
def test_options_of_time_accept_units(command, option):
    parser = load_command_class("django_pgqueue", command).create_parser("manage.py", command)

    options = vars(parser.parse_args([option, "1.5m"]))

    assert options[option.strip("-").replace("-", "_")] == 90
