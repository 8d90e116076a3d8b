"""``pgqueue_maintain``."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.core.management import CommandError

from django_pgqueue.maintenance import lakes, retention
from django_pgqueue.models import ArchivedMessage, Lake, Message, Queue, queue
from tests.actors import begin, commit
from tests.actors import call as operate
from tests.conftest import run_sql
from tests.maintenance.test_retention import daily, done, partition, plain, sent
from tests.management.calling import call, call_json

pytestmark = pytest.mark.django_db


def test_each_queue_is_a_line_with_the_work_done(orders):
    found = daily()
    partition(found, 9)
    done(found, sent(found, 3, 9), 8)
    old = plain()
    done(old, sent(old, 2, 9), 8)

    headings, *lines = call("pgqueue_maintain").out.splitlines()

    assert " ".join(headings.split()) == "queue removed partitions dropped partitions made note"
    assert [line.split() for line in lines] == [
        ["daily", "3", "1", "0"],
        ["orders", "0", "0", "0"],
        ["plain", "2", "0", "0"],
    ]
    assert not ArchivedMessage.objects.exists()


def test_the_same_can_be_had_as_json_for_some_queues(orders):
    old = plain()
    done(old, sent(old, 2, 9), 8)

    [said] = call_json("pgqueue_maintain", "plain")

    assert (said["queue_name"], said["pruned"], said["error"]) == ("plain", 2, "")
    assert dt.datetime.fromisoformat(said["before"]).tzinfo is not None


def test_a_lock_in_the_way_is_named(actor):
    found = daily()
    partition(found, 9)
    actor.do(begin)
    actor.do(operate, "send", "daily", 1)

    said = call("pgqueue_maintain", "--patience", "0.1", "--stall", "0.01").out

    assert said.splitlines()[1].endswith("other sessions use the tables: run this again later")
    actor.do(commit)


def test_a_lake_of_another_server_is_named_with_advice(orders):
    found = plain()
    done(found, sent(found, 2, 9), 8)
    Lake.objects.create(
        path="/old",
        holds_retention=True,
        exported_below=2**40,
        exported_at=dt.datetime.now(dt.timezone.utc),
        system="7000",
    )

    said = call("pgqueue_maintain").out
    [of_orders, of_plain] = call_json("pgqueue_maintain")

    assert "nothing removed: a lake was exported from another server" in said
    assert "Lakes exported from another server: /old." in said
    assert "pgqueue_export PATH --hold-retention" in said
    assert (of_orders["foreign_lakes"], of_plain["foreign_lakes"]) == ([], ["/old"])
    assert ArchivedMessage.objects.count() == 2


def test_a_queue_that_fails_does_not_stop_maintenance_of_the_others(orders):
    first, last = plain("a"), plain("z")
    for found in (first, last):
        done(found, sent(found, 2, 9), 8)
    # Simulates a role that may not delete from the table.
    run_sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN RAISE 'permission denied' USING ERRCODE = '42501'; END$$"
    )
    run_sql(
        f"CREATE TRIGGER refuse BEFORE DELETE ON {first.tables['archive']} "
        "EXECUTE FUNCTION refuse()"
    )

    with pytest.raises(CommandError, match="a: permission denied") as raised:
        call("pgqueue_maintain")

    assert raised.value.returncode == 1
    assert list(ArchivedMessage.objects.values_list("queue__name", flat=True)) == ["a", "a"]
    assert "z" in raised.value.said.out  # type: ignore[attr-defined]


@pytest.mark.parametrize("wrong", [("--stall", "0"), ("--patience", "-1"), ("--stall", "soon")])
def test_waits_that_mean_nothing_are_refused(orders, wrong):
    with pytest.raises(CommandError, match=r"stall|patience|not a duration"):
        call("pgqueue_maintain", *wrong)


def test_an_interrupt_says_how_many_messages_were_removed(monkeypatch):
    monkeypatch.setattr(retention, "BATCH", 2)
    found = plain()
    done(found, sent(found, 6, 9), 8)
    note = lakes.note_removal
    batches: list[int] = []

    def interrupt(*args: Any) -> None:
        batches.append(1)
        if len(batches) == 3:
            raise KeyboardInterrupt
        note(*args)

    monkeypatch.setattr(lakes, "note_removal", interrupt)

    with pytest.raises(
        CommandError, match=r"Interrupted. 4 messages removed. Run the command again"
    ) as said:
        call("pgqueue_maintain")

    assert said.value.returncode == 130
    assert Message.objects.filter(queue=found).count() == 2
    assert queue("plain").metrics().archived == 2
    assert Queue.objects.count() == 1
