"""Consumers as processes: signals, supervisor, limits, health, and remains."""

from __future__ import annotations

import json
import os
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from django.db import OperationalError, connection

from django_pgqueue.handlers import Handler
from django_pgqueue.models import BoundQueue, Message, Process, queue
from django_pgqueue.worker import Consumer, Options
from tests.acceptance.test_transactions import pgbouncer
from tests.app.models import Order
from tests.conftest import run_sql
from tests.ports import free_port
from tests.waiting import process_state, until
from tests.worker.consuming import leases, live, outcomes
from tests.working import history
from tests.working.running import Command

__all__ = ["pgbouncer"]

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.acceptance]


@pytest.fixture
def start(committed: None, tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """Start ``runconsumer patient`` with further arguments; ends it with the test."""
    started: list[Command] = []

    def run(*arguments: object, **environment: Any) -> Command:
        command = Command(
            url(), "runconsumer", "patient", *arguments, WORKING_HISTORY=tmp_path, **environment
        )
        started.append(command)
        return command

    yield run
    for command in started:
        command.__exit__(None, None, None)


@pytest.fixture
def patient(committed: None) -> BoundQueue:
    Message.objects.create_queue("patient")
    return queue("patient")


def url() -> str:
    connection.ensure_connection()
    known = connection.connection.info
    query = urlencode({"host": known.host, "port": known.port})
    return f"postgresql://{known.user}@/{known.dbname}?{query}"


def begun(directory: Path) -> int:
    return len([event for event in history.read(directory) if event["event"] == "deliver"])


def waiting(count: int, path: Path) -> list[dict[str, Any]]:
    """Bodies of messages whose handlers wait until the file ``go`` exists."""
    return [
        {"op": n, "before": "wait", "until": str(path / "go"), "times": 99} for n in range(count)
    ]


# Signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_running_handlers_finish_and_releases_other_messages(
    patient, start, tmp_path, number
):
    patient.send_batch(waiting(12, tmp_path))
    command = start()
    until(lambda: begun(tmp_path) == 2)

    command.send(number)
    until(lambda: sum(row[1] == "PROCESSING" for row in live("patient")) == 2)
    (tmp_path / "go").touch()

    assert command.wait() == 0
    assert len(outcomes("patient")) == 2
    assert {(row[2], row[3]) for row in live("patient")} == {(0, 0)}
    assert (leases("patient"), Process.objects.count()) == (0, 0)
    assert f"Stopped: {signal.Signals(number).name}." in command.output


def test_a_second_signal_stops_at_once_and_loses_nothing(patient, start, tmp_path):
    ids = patient.send_batch(waiting(5, tmp_path))
    command = start()
    until(lambda: begun(tmp_path) == 2)

    command.terminate()
    until(lambda: Process.objects.filter(stopping=True).exists())
    command.terminate()

    assert command.wait(5) == 0
    assert leases("patient") == 0
    assert sorted(message.id for message in patient.read(qty=None)) == ids
    assert not Process.objects.exists()


def test_handlers_that_take_too_long_are_left_after_the_graceful_timeout(patient, start, tmp_path):
    patient.send_batch(waiting(2, tmp_path))
    command = start("--graceful-timeout", 0.5)
    until(lambda: begun(tmp_path) == 2)

    command.terminate()

    assert command.wait(10) == 0
    assert (leases("patient"), len(live("patient"))) == (0, 2)


@pytest.mark.parametrize("again", [True, False], ids=["second signal", "graceful timeout"])
def test_a_log_that_never_answers_does_not_hold_up_the_end(patient, start, again):
    ids = patient.send_batch([{"op": 1, "before": "raise"}, {"op": 2}, {"op": 3}])
    command = start("--graceful-timeout", 30 if again else 0.5, WORKING_STUCK_LOG=1)
    until(lambda: sorted(outcomes("patient")) == ids, seconds=60)

    command.terminate()
    if again:
        until(lambda: not Process.objects.exists())  # all is done but the log
        command.terminate()

    assert command.wait(20) == 0
    assert not Process.objects.exists()
    assert "patient: 3 completed, 1 retried, 0 failed" in command.output


def test_a_thread_of_an_async_handler_does_not_hold_up_the_end(committed, tmp_path):
    queue("asleep").create()
    queue("asleep").send({"op": 1})
    options = ["--graceful-timeout", 0.5]
    with Command(url(), "runconsumer", "asleep", *options, WORKING_HISTORY=tmp_path) as command:
        until(lambda: any(each["event"] == "deliver" for each in history.read(tmp_path)))

        command.terminate()

        assert command.wait(20) == 0
        assert "was interrupted" in command.output


@pytest.mark.parametrize("again", [True, False], ids=["second signal", "graceful timeout"])
def test_a_message_that_every_deploy_interrupts_is_done_in_the_end(
    committed, start, tmp_path, again
):
    """There are more deploys than deliveries allowed: no deploy counts, or makes the message a
    suspect.
    """
    Message.objects.create_queue("patient", max_deliveries=2)
    ids = Message.objects.send_batch("patient", waiting(2, tmp_path))
    for deploy in range(1, 4):
        command = start("--graceful-timeout", 30 if again else 0.1)
        until(lambda deploy=deploy: begun(tmp_path) == 2 * deploy)
        command.terminate()
        if again:
            until(lambda: Process.objects.filter(stopping=True).exists())
            command.terminate()
        assert command.wait(10) == 0
        assert live("patient") == [(pk, "SCHEDULED", 0, 0) for pk in ids]
        assert f"message {ids[0]} was interrupted after" in command.output
    (tmp_path / "go").touch()

    start("--drain").wait()

    assert outcomes("patient") == dict.fromkeys(ids, "COMPLETED")


def test_the_final_report_counts_a_cancelled_message_and_no_lost_lease(patient, start, tmp_path):
    [pk] = patient.send_batch(waiting(1, tmp_path))
    command = start()
    until(lambda: begun(tmp_path) == 1)

    patient.cancel(pk, reason="the customer withdrew")
    (tmp_path / "go").touch()
    until(lambda: "cancelled (the customer withdrew)" in command.output)
    command.terminate()

    assert command.wait() == 0
    assert "patient: 0 completed, 0 retried, 0 failed, 1 cancelled in " in command.output
    assert "visibility_timeout" not in command.output


def test_a_handler_can_terminate_its_child_process(patient, start, tmp_path):
    """Not so with the consumer's signal handlers, which a forked child inherits."""
    patient.send({"op": 1, "before": "child"})

    start("--drain").wait()

    ended = [event for event in history.read(tmp_path) if event["event"] == "ended"]
    assert [event["code"] for event in ended] == [-signal.SIGTERM]


def test_daemonic_child_processes_of_handlers_end_with_the_consumer(patient, start, tmp_path):
    patient.send({"op": 1, "before": "daemon"})
    command = start()
    until(lambda: outcomes("patient"), seconds=60)

    command.terminate()

    assert command.wait(20) == 0


# Limits


def test_drain_ends_when_all_messages_are_done_retries_included(patient, start):
    bodies = [{"op": n, "before": "raise" if n % 10 == 0 else None} for n in range(50)]
    patient.send_batch(bodies)

    command = start("--drain")

    assert command.wait() == 0
    assert list(outcomes("patient").values()) == ["COMPLETED"] * 50
    assert "patient: 50 completed, 5 retried, 0 failed" in command.output
    assert "Stopped: the queues are empty." in command.output


@pytest.mark.parametrize("limit", [1, 7, 50])
def test_max_messages_is_exact(patient, start, limit):
    patient.send_batch([{"op": n} for n in range(60)])

    command = start("--max-messages", limit)

    assert command.wait() == 0
    assert len(outcomes("patient")) == limit
    assert {row[2] for row in live("patient")} == {0}


def test_max_messages_is_exact_for_locked_handlers_too(committed, start, tmp_path):
    Message.objects.create_queue("locked")
    Message.objects.send_batch("locked", [{"op": n} for n in range(60)])

    with Command(url(), "runconsumer", "locked", "--max-messages", 7) as command:
        assert command.wait() == 0

    assert len(outcomes("locked")) == 7


def test_max_runtime_and_max_memory_end_the_process(patient, start):
    long, large = start("--max-runtime", 0.5), start("--max-memory", "1M")

    assert (long.wait(), large.wait()) == (0, 0)
    assert "Stopped: ran for 0.5 seconds." in long.output
    assert "Stopped: the process uses more than 1048576 bytes of memory." in large.output


# After a kill


def test_a_killed_consumers_leases_are_rescued_before_their_timeout(committed, start, tmp_path):
    """The lease lasts an hour; the missing heartbeat is noticed after some seconds."""
    Message.objects.create_queue("patient", visibility_timeout=3600)
    Message.objects.send("patient", {"op": 1, "before": "kill"})
    first = start()
    assert first.wait() == -signal.SIGKILL
    # Simulates twelve missed seconds.
    run_sql("UPDATE pgqueue_process SET heartbeat_at = now() - interval '13 seconds'")

    start()

    until(lambda: len(outcomes("patient")) == 1)
    until(lambda: Process.objects.count() == 1)


@pytest.mark.parametrize("max_deliveries", [2, 3])
def test_poison_ends_no_innocent_message(committed, start, max_deliveries):
    Message.objects.create_queue("patient", max_deliveries=max_deliveries)
    bodies = [{"op": n, "before": "kill" if n < 3 else None, "times": 99} for n in range(40)]
    ids = Message.objects.send_batch("patient", bodies)

    while (command := start("--drain")).wait() == -signal.SIGKILL:
        run_sql("UPDATE pgqueue_process SET heartbeat_at = now() - interval '1 minute'")

    assert command.wait() == 0
    assert outcomes("patient") == dict.fromkeys(ids[:3], "FAILED") | dict.fromkeys(
        ids[3:], "COMPLETED"
    )


def test_a_child_that_is_killed_is_replaced(patient, start):
    start("--processes", 2)
    until(lambda: Process.objects.count() == 2)
    pids = set(Process.objects.values_list("pid", flat=True))

    os.kill(min(pids), signal.SIGKILL)

    until(lambda: len(set(Process.objects.values_list("pid", flat=True)) - pids) == 1)


def test_children_stop_when_their_supervisor_is_killed(patient, start):
    supervisor = start("--processes", 2)
    until(lambda: Process.objects.count() == 2)
    pids = list(Process.objects.values_list("pid", flat=True))

    supervisor.kill()

    until(lambda: not any(runs(pid) for pid in pids))
    assert not Process.objects.exists()


def runs(pid: int) -> bool:
    try:
        return process_state(pid) != "Z"
    except FileNotFoundError:
        return False


def test_a_supervisor_passes_the_signal_on_and_waits(patient, start):
    # argparse accepts abbreviations: the children must not become supervisors themselves.
    supervisor = start("--proc", 2)
    until(lambda: Process.objects.count() == 2)

    supervisor.terminate()

    assert supervisor.wait() == 0
    assert not Process.objects.exists()


def test_each_process_consumes_the_queues_that_a_pattern_matches(committed):
    for name in ("patient", "lease"):
        queue(name).create()
        queue(name).send_batch([{"op": 1}, {"op": 2}])
    chosen = ("pat*", "lease", "--except", "l[e]ase", "--processes", 2, "--drain")

    with Command(url(), "runconsumer", *chosen) as supervisor:
        assert supervisor.wait() == 0
        assert "Consuming patient (" in supervisor.output

    assert (len(outcomes("patient")), len(outcomes("lease"))) == (2, 0)


def test_a_supervisor_ends_when_its_children_have_drained(patient, start):
    patient.send_batch([{"op": n} for n in range(40)])

    supervisor = start("--processes", 2, "--drain")

    assert supervisor.wait() == 0
    assert len(outcomes("patient")) == Order.objects.count() == 40


# First words


def test_the_first_lines_name_the_queues_and_their_workers(patient, start):
    command = start("--drain")

    assert command.wait() == 0
    assert "Consuming patient (2 workers) from database 'default' (" in command.output
    assert "), listening.\n" in command.output
    assert " INFO django_pgqueue: consumer started: patient\n" in command.output


def test_its_connections_are_named(patient, start):
    start()
    until(lambda: Process.objects.exists())

    named = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'runconsumer patient'"

    # The connections of the listener, the loops and the main thread.
    until(lambda: run_sql(named)[0][0] >= 3)


def test_a_server_that_is_down_is_one_line(start):
    with Command("postgresql://postgres@127.0.0.1:1/none", "runconsumer", "patient") as command:
        assert command.wait() == 1
        assert "Traceback" not in command.output
        assert "See whether the server of DATABASES['default'] is up" in command.output


def test_a_database_without_tables_is_one_line(start):
    known = connection.settings_dict["NAME"]
    with Command(url().replace(f"/{known}?", "/postgres?"), "runconsumer", "patient") as command:
        assert command.wait() == 1
        assert "Traceback" not in command.output
        assert "Make the tables first: manage.py migrate" in command.output


def test_behind_a_transaction_pooler_a_consumer_polls_and_logs_that_once(patient, pgbouncer, start):
    address = f"{pgbouncer['HOST']}:{pgbouncer['PORT']}/{pgbouncer['NAME']}"
    known = f"postgresql://{pgbouncer['USER']}@{address}"
    settings = json.dumps({"DISABLE_SERVER_SIDE_CURSORS": True})
    with Command(known, "runconsumer", "patient", WORKING_DATABASE=settings) as command:
        until(lambda: "--no-listen" in command.output)
        patient.send({"op": 1})
        until(lambda: len(outcomes("patient")) == 1)
        command.terminate()
        assert command.wait() == 0
        assert command.output.count("LISTEN does not work on database 'default'") == 1

    assert run_sql("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%%'") == [(0,)]


# Health, reload, errors


def test_the_health_port_answers(patient, start, tmp_path):
    patient.send_batch(waiting(1, tmp_path))
    port = free_port()
    command = start("--health-port", port)
    until(lambda: begun(tmp_path) == 1)

    alive, ready, other = (ask(port, path) for path in ("healthz", "readyz", "metrics"))
    command.terminate()
    until(lambda: ask(port, "readyz")[0] == 503)
    leaving = {ask(port, "healthz")[0] for _ in range(30)}
    (tmp_path / "go").touch()

    assert (alive[0], ready[0], other[0], leaving) == (200, 200, 404, {200})
    assert ready[1]["queues"]["patient"]["running"] == 1
    assert command.wait() == 0


@pytest.mark.parametrize(("option", "address"), [((), "127.0.0.1"), (("0.0.0.0",), "0.0.0.0")])
def test_the_health_port_is_local_by_default(patient, option, address):
    found = Options(health_port=0, **({"health_host": option[0]} if option else {}))
    consumer = Consumer([Handler("patient", lambda message: None)], found)
    addresses: list[Any] = []

    def look() -> None:
        assert consumer._health is not None
        addresses.append(consumer._health._server.server_address[0])
        consumer.stop()

    consumer.run(every_second=look)

    assert addresses == [address]


def test_each_process_has_a_health_port_of_its_own(patient, start):
    port = free_port()
    start("--processes", 2, "--health-port", port)

    until(lambda: ask(port, "healthz")[0] == ask(port + 1, "healthz")[0] == 200, seconds=60)


def test_a_consumer_that_cannot_register_leaves_its_port_to_others(patient, monkeypatch):
    port = free_port()
    handler = Handler("patient", lambda message: None)
    consumer = Consumer([handler], Options(health_port=port))
    monkeypatch.setattr(consumer.presences[0], "register", down)

    with pytest.raises(OperationalError):
        consumer.run()

    with socket.socket() as other:
        other.bind(("", port))


def test_a_health_port_that_is_taken_is_one_line(patient, start):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        command = start("--health-port", other.getsockname()[1])

        assert command.wait() == 1
    assert "Traceback" not in command.output
    assert "choose another --health-port" in command.output
    assert not Process.objects.exists()


def down() -> None:
    raise OperationalError("the database is down")


def ask(port: int, path: str) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=5) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, {}
    except OSError:
        return 0, {}


def test_autoreload_runs_a_consumer_and_ends_it_gracefully(patient, start, tmp_path):
    patient.send_batch(waiting(4, tmp_path))
    command = start("--autoreload")
    until(lambda: begun(tmp_path) == 2, 30)
    child = Process.objects.get().pid

    os.kill(child, signal.SIGTERM)
    until(lambda: sum(row[1] == "PROCESSING" for row in live("patient")) == 2)
    (tmp_path / "go").touch()

    until(lambda: not runs(child))
    assert (leases("patient"), len(outcomes("patient"))) == (0, 2)
    command.terminate()


def test_a_queue_that_does_not_exist_is_an_error_at_the_start(committed, start):
    command = start()

    assert command.wait() == 1
    assert "There is no queue 'patient'" in command.output
