"""Bounds: a *bound* is a CHECK constraint that all rows of a table are older than some time.

With a validated bound PostgreSQL attaches the table as a partition at once. Without it PostgreSQL
would read all rows under ACCESS EXCLUSIVE.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from django_pgqueue.engine.names import MESSAGE, PARENTS, own_table

_PREFIX = "pgqueue_bound_"
SECONDS = "%Y%m%d%H%M%S"


def find_bounds(cursor: Any, queue_id: int) -> dict[str, dt.datetime]:
    """Return the times of the bounds on the queue's tables, by parent table."""
    found = {}
    for parent in PARENTS:
        cursor.execute(
            "SELECT conname FROM pg_constraint "
            "WHERE conrelid = to_regclass(%s) AND starts_with(conname, %s)",
            [own_table(parent, queue_id), _PREFIX],
        )
        for (name,) in cursor.fetchall():
            until = dt.datetime.strptime(name.removeprefix(_PREFIX), SECONDS)
            found[parent] = until.replace(tzinfo=dt.timezone.utc)
    return found


def add_bound(cursor: Any, queue_id: int, parent: str, until: dt.datetime) -> None:
    """Add a bound to a table, for new rows only.

    Takes ACCESS EXCLUSIVE on the table for a catalog change. If the conversion never continues and
    the bound's time passes, sends must not fail: a trigger then sets ``enqueued_at`` of new
    messages to the last microsecond before that time.
    """
    table, number = own_table(parent, queue_id), int(queue_id)
    if parent == MESSAGE:
        cursor.execute(
            f"CREATE OR REPLACE FUNCTION {_function(number)}() RETURNS trigger "
            f"LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$ BEGIN "
            f"NEW.enqueued_at := '{until.isoformat()}'::timestamptz - interval '1 us'; "
            f"RETURN NEW; END $$"
        )
        cursor.execute(f"REVOKE EXECUTE ON FUNCTION {_function(number)}() FROM PUBLIC")
        cursor.execute(
            f"CREATE TRIGGER pgqueue_bound BEFORE INSERT ON {table} FOR EACH ROW "
            f"WHEN (NEW.enqueued_at >= '{until.isoformat()}') "
            f"EXECUTE FUNCTION {_function(number)}()"
        )
    cursor.execute(
        f"ALTER TABLE {table} ADD CONSTRAINT {constraint_name(until)} "
        f"CHECK (queue_id = {number} AND enqueued_at < '{until.isoformat()}') NOT VALID"
    )


def validate_bound(cursor: Any, queue_id: int, parent: str, until: dt.datetime) -> None:
    """Validate the bound by reading all rows, which blocks neither senders nor readers.

    A bound that is valid already is not validated again.

    Raises CheckViolation if a row is not older than the bound.
    """
    cursor.execute(
        f"ALTER TABLE {own_table(parent, queue_id)} VALIDATE CONSTRAINT {constraint_name(until)}"
    )


def drop_bounds(cursor: Any, queue_id: int) -> None:
    """Remove the bounds. Takes ACCESS EXCLUSIVE on both tables for a catalog change."""
    for parent, until in find_bounds(cursor, queue_id).items():
        table = own_table(parent, queue_id)
        cursor.execute(f"ALTER TABLE {table} DROP CONSTRAINT {constraint_name(until)}")
    drop_function(cursor, queue_id)


def drop_function(cursor: Any, queue_id: int) -> None:
    """Drop the bound's function, with its trigger if the table still exists."""
    cursor.execute(f"DROP FUNCTION IF EXISTS {_function(queue_id)}() CASCADE")


def constraint_name(until: dt.datetime) -> str:
    """Return the constraint's name: a prefix and the time of the bound.

    >>> constraint_name(dt.datetime(2026, 11, 21, 15, tzinfo=dt.timezone.utc))
    'pgqueue_bound_20261121150000'
    """
    return f"{_PREFIX}{until.astimezone(dt.timezone.utc):{SECONDS}}"


def _function(queue_id: int) -> str:
    return f"pgqueue_bound_q{int(queue_id)}"
