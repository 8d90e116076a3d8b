"""A connection to the database, its server's identity, and the queues that the options select."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from django_pgqueue.engine.names import MESSAGE, own_table
from django_pgqueue.engine.statements import compose
from pyspark_pgqueue.errors import InvalidOption, ServerChanged
from pyspark_pgqueue.source.offsets import Snapshot
from pyspark_pgqueue.source.options import Options

Queue = tuple[int, str]


#: A condition for the names of the selected queues. Its parameters are those of ``selection``.
SELECTED = "(%(all)s OR lower({name}) = ANY(%(names)s) OR {name} ~ %(pattern)s)"


@dataclass(frozen=True)
class Server:
    """The server's snapshot, its identity, and whether it is a replica."""

    now: Snapshot
    system: str
    is_replica: bool


# Matches the parts of an address that libpq quotes in its errors.
_QUOTED = re.compile(r'".*"', re.S)


def database_url(text: str) -> str:
    """Return the libpq address of a database, given its libpq or JDBC address.

    >>> database_url("jdbc:postgresql://db/shop")
    'postgresql://db/shop'

    Raises InvalidOption. Its text has no part of the address, since that may be the password.
    """
    url = text.removeprefix("jdbc:")
    try:
        conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        reason = _QUOTED.sub('"…"', str(error).strip())
        jdbc = ", without parameters that only JDBC knows" if url != text else ""
        raise InvalidOption(
            f"The url is not a PostgreSQL address: {reason}. Write it as "
            f"postgresql://user@host/database{jdbc}."
        ) from None
    return url


def sql(name: str, **names: object) -> str:
    """Load a statement from a part of a .sql file, such as ``lake/runs/groups``."""
    folder, _, part = name.partition("/")
    return compose(part, names, f"pyspark_pgqueue.{folder}")


def connect(url: str) -> psycopg.Connection[Any]:
    return psycopg.connect(url, autocommit=True, application_name="pgqueue spark")


def server(connection: psycopg.Connection[Any]) -> Server:
    [(snapshot, is_replica, system)] = connection.execute(
        "SELECT pg_current_snapshot()::text, pg_is_in_recovery(), system_identifier::text "
        "FROM pg_control_system()"
    )
    now = Snapshot.parse(snapshot)
    # A replica's snapshot does not show which transactions are running on the primary.
    return Server(Snapshot.below(now.xmin) if is_replica else now, system, is_replica)


def check_server(connection: psycopg.Connection[Any], server: Server) -> None:
    """Refuse an archive from another server's dump: its transactions are ahead of this server.

    The transaction numbers mean nothing here, and streams would skip rows until the server reaches
    the numbers.
    """
    [(newest, reached)] = connection.execute(
        "SELECT max(archive_xid), pg_snapshot_xmax(pg_current_snapshot())::text::bigint "
        "FROM pgqueue_archive WHERE archive_xid >= %s",
        [server.now.xmax],
    )
    # All is well if the server assigned this transaction's number after the planner's snapshot.
    if newest is None or server.is_replica or newest < reached:
        return
    raise ServerChanged(
        f"The archive has transaction {newest}, but this server is only at {server.now.xmax}: the "
        f"database was restored from a dump of another server. First renumber the restored rows: "
        f"UPDATE pgqueue_archive SET archive_xid = DEFAULT; "
        f"UPDATE pgqueue_message SET enqueued_xid = DEFAULT; DELETE FROM pgqueue_purge_mark; "
        f"Then start from new checkpoints, and export to a new lake."
    )


def selection(options: Options) -> dict[str, Any]:
    return {
        "all": not options.subscribe and options.pattern is None,
        "names": [name.lower() for name in options.subscribe],
        "pattern": None if options.pattern is None else f"^(?:{options.pattern})$",
    }


def queues(
    connection: psycopg.Connection[Any],
    options: Options,
    conditions: Sequence[str] = (),
    *,
    may_be_dropped: bool = False,
) -> list[Queue]:
    """The selected queues, as (id, name). Leaves subscriptions out: their source has the messages.

    Raises InvalidOption for an unknown name, and for that of a subscription. With
    ``may_be_dropped``, names of dropped queues are known.
    """
    # A percent sign in a condition is literal: a condition takes no parameters.
    terms = [each.replace("{queue}", "q.name").replace("%", "%%") for each in conditions]
    where = " AND ".join([SELECTED.format(name="q.name"), *terms])
    found: list[Queue] = connection.execute(
        f"SELECT q.id, q.name FROM pgqueue_queue q WHERE {where} AND q.source_id IS NULL "
        f"ORDER BY q.name",
        selection(options),
    ).fetchall()
    missing = {name.lower() for name in options.subscribe} - {name.lower() for _, name in found}
    if missing:
        readers = (
            "SELECT q.name, s.name FROM pgqueue_queue q JOIN pgqueue_queue s ON s.id = q.source_id "
            "WHERE lower(q.name) = ANY(%s)"
        )
        for name, source in connection.execute(readers, [list(missing)]):
            raise InvalidOption(
                f"Queue {name!r} is a subscription, which Spark cannot read. Name its source, "
                f"queue {source!r}."
            )
    if missing and may_be_dropped:
        marks = "SELECT lower(dropped) FROM pgqueue_purge_mark WHERE lower(dropped) = ANY(%s)"
        missing -= {name for (name,) in connection.execute(marks, [list(missing)])}
    if missing and not conditions:
        raise InvalidOption(
            f"There is no queue {', '.join(map(repr, sorted(missing)))} in the database. "
            f"Correct the name, or create the queue."
        )
    return found


def sample(connection: psycopg.Connection[Any], options: Options) -> list[str]:
    """Sample bodies, the same number from each selected queue."""
    chosen = queues(connection, options)
    found: list[str] = []
    for pk, _ in chosen:
        rows = connection.execute(
            f"SELECT body::text FROM {own_table(MESSAGE, pk)} WHERE body IS NOT NULL LIMIT %s",
            [max(options.body_sample // len(chosen), 1)],
        )
        found += [text for (text,) in rows]
    return found
