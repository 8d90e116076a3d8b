"""Makes statements fail: by triggers that raise, sleep or cut the connection, or by timeouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django.db import connection

from django_pgqueue.database.locks import milliseconds
from django_pgqueue.engine.names import own_table
from django_pgqueue.models import Queue

__all__ = ["hinder", "statement_timeout"]

#: Terminates the INSERT's session at one row, once: a rollback does not reset a sequence.
_CUT = "IF nextval('hindered') = {row} THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;"


def hinder(
    name: str, body: str = "", *, at_commit: bool = False, cut_at: int | None = None
) -> Callable[[], None]:
    """Run PL/pgSQL for each message that is sent to a queue; returns a function that ends this.

    Arguments:
        at_commit: run it at the end of the transaction, like a deferred constraint.
        cut_at: instead of running ``body``, cut the connection at this row.
    """
    table = own_table("pgqueue_message", Queue.objects.get(name=name).pk)
    if cut_at is not None:
        body = _CUT.format(row=cut_at)
    kind, when = ("CONSTRAINT", "DEFERRABLE INITIALLY DEFERRED") if at_commit else ("", "")
    with connection.cursor() as cursor:
        cursor.execute("DROP SEQUENCE IF EXISTS hindered")
        cursor.execute("CREATE SEQUENCE hindered")
        cursor.execute(
            "CREATE OR REPLACE FUNCTION hindered() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN {body} RETURN NEW; END $$"
        )
        cursor.execute(
            f"CREATE {kind} TRIGGER hindered AFTER INSERT ON {table} {when} "
            "FOR EACH ROW EXECUTE FUNCTION hindered()"
        )

    def end() -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"DROP TRIGGER hindered ON {table}")

    return end


@contextmanager
def statement_timeout(seconds: float) -> Iterator[None]:
    """Set ``statement_timeout`` for this thread's session during the block."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('statement_timeout', %s, false)", [milliseconds(seconds)])
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("RESET statement_timeout")
