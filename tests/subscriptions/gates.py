"""Stops another process in the middle of a statement."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from tests.actors import Actor, execute
from tests.conftest import run_sql
from tests.waiting import until

__all__ = ["Gate", "blocked", "seek", "settle", "subscribe"]

_LOCK = 4711


class Gate:
    """A trigger before a statement's change of a table, which waits until the gate is opened.

    It stops only actors that :meth:`stops`. The statement has taken its snapshot by then. With
    ``when="AFTER"`` it has made its change, and holds its locks.
    """

    def __init__(self, table: str, event: str, when: str = "BEFORE") -> None:
        self._table = table
        run_sql(f"SELECT pg_advisory_lock({_LOCK})")
        run_sql(
            "CREATE OR REPLACE FUNCTION tests_gate() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "IF current_setting('tests.gate', true) = 'on' THEN "
            f"PERFORM pg_advisory_xact_lock_shared({_LOCK}); END IF; RETURN NULL; END $$"
        )
        run_sql(
            f"CREATE TRIGGER tests_gate {when} {event} ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION tests_gate()"
        )

    def stops(self, actor: Actor) -> None:
        actor.do(execute, "SET tests.gate = 'on'")

    def open(self) -> None:
        run_sql(f"SELECT pg_advisory_unlock({_LOCK})")

    def remove(self) -> None:
        run_sql("SELECT pg_advisory_unlock_all()")
        run_sql(f"DROP TRIGGER tests_gate ON {self._table}")


def blocked(future: Future[Any], number: int = 1) -> None:
    """Wait until so many sessions wait for a lock, one of them for the future's step."""
    until(
        lambda: (
            future.done()
            or run_sql(
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
                "AND datname = current_database()"
            )[0][0]
            >= number
        )
    )
    assert not future.done(), f"it did not wait, but came to {future!r}"


# Called in an actor's process:


def seek(name: str, to: Any) -> None:
    from django_pgqueue.models import queue

    queue(name).seek(to)


def subscribe(name: str, source: str, start: Any, **settings: Any) -> None:
    from django_pgqueue.models import queue

    queue(name).subscribe(to=source, start=start, **settings)


def settle(operation: str, name: str, given: Any) -> list[int]:
    """Call an operation on messages or receipts; returns the ids that it settled."""
    from django_pgqueue.models import queue

    return list(getattr(queue(name), operation)(given))
