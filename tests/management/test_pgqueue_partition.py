"""``pgqueue_partition``."""

from __future__ import annotations

import datetime as dt
import signal
from urllib.parse import urlencode

import pytest
from django.core.management import CommandError
from django.db import connection

from django_pgqueue.ddl import conversion
from django_pgqueue.models import BoundQueue, Message, Queue
from tests.management.calling import call, call_json
from tests.waiting import until
from tests.working.running import Command


def url() -> str:
    """The tests' database, for another process."""
    known = connection.get_connection_params()
    query = urlencode({"host": known["host"], "port": known.get("port") or 5432})
    return f"postgresql://{known.get('user', '')}@/{known['dbname']}?{query}"


def interval() -> dt.timedelta | None:
    return Queue.objects.get(name="orders").partition_interval


def test_a_queue_gets_slices_and_loses_them(committed_orders: BoundQueue) -> None:
    committed_orders.send_batch([1, 2, 3])

    said = call("pgqueue_partition", "orders", "--interval", "1d")
    assert said.out == "Queue 'orders' now has partitions of 1 day, 0:00:00.\n"
    assert interval() == dt.timedelta(days=1)

    said = call("pgqueue_partition", "orders", "--off")
    assert said.out == "Queue 'orders' now has one table.\n"
    assert interval() is None
    assert committed_orders.metrics().ready == 3


def test_the_same_can_be_had_as_json(committed_orders: BoundQueue) -> None:
    assert call_json("pgqueue_partition", "orders", "--interval", "90") == {
        "queue": "orders",
        "changed": True,
        "was": None,
        "partition_interval": 90.0,
    }
    assert call_json("pgqueue_partition", "orders", "--interval", "90s")["changed"] is False
    assert call_json("pgqueue_partition", "orders", "--off") == {
        "queue": "orders",
        "changed": True,
        "was": 90.0,
        "partition_interval": None,
    }


def test_a_terminal_shows_how_far_it_is(committed: None) -> None:
    Message.objects.create_queue("orders", partition_interval=60)
    Message.objects.send_batch("orders", [1, 2, 3])

    said = call("pgqueue_partition", "orders", "--off", terminal=True)

    assert "rows copied" in said.err
    assert "rows" not in said.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["orders"], "one of the arguments --interval --off is required"),
        (["orders", "--off", "--interval", "1d"], "not allowed with"),
        (["orders", "--interval", "daily"], "'daily' is not a duration"),
        (["orders", "--interval", "0"], "partition_interval must be at least a second"),
        (["nowhere", "--off"], "There is no queue 'nowhere'"),
    ],
)
def test_what_cannot_be_done_is_refused(
    committed_orders: BoundQueue, arguments: list[str], words: str
) -> None:
    with pytest.raises(CommandError, match=words):
        call("pgqueue_partition", *arguments)

    assert interval() is None


def test_after_ctrl_c_it_says_how_to_go_on(
    committed_orders: BoundQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(conversion, "check_bound", interrupt)
        with pytest.raises(
            CommandError, match=r"Run the command again to go on, .* \(--off\)"
        ) as stopped:
            call("pgqueue_partition", "orders", "--interval", "1d")

    assert stopped.value.returncode == 130
    assert committed_orders.send(1)
    call("pgqueue_partition", "orders", "--interval", "1d")
    assert interval() == dt.timedelta(days=1)


@pytest.mark.slow
def test_ctrl_c_ends_a_copy_of_a_process_and_another_one_finishes_it(committed: None) -> None:
    Message.objects.create_queue("orders", partition_interval=86400)
    ids = Message.objects.send_batch("orders", list(range(100_000)))
    pk = Queue.objects.get().pk

    with Command(url(), "pgqueue_partition", "orders", "--off") as command:
        until(lambda: _has_rows(f"pgqueue_message_q{pk}_new") or not command.alive, 30)
        command.send(signal.SIGINT)
        assert command.wait() == 130, command.output
        assert "Interrupted. The queue works as before." in command.output
    Message.objects.send("orders", "between")
    call("pgqueue_partition", "orders", "--off")

    assert interval() is None
    assert Message.objects.count() == len(ids) + 1


def _has_rows(table: str) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [table])
        if cursor.fetchone() == (False,):
            return False
        cursor.execute(f"SELECT EXISTS (SELECT FROM {table})")
        return bool(cursor.fetchone()[0])
