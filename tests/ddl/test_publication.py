"""Logical replication: publications disturb no queue, and subscriptions to them work."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from environ import Env

from django_pgqueue.embedded.server import EmbeddedServer
from tests.actors import Actor, call, execute, manage
from tests.conftest import VERSIONS
from tests.servers import new_database, one_server
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=VERSIONS)
def server(request: pytest.FixtureRequest) -> Iterator[EmbeddedServer]:
    settings = {"shared_buffers": "32MB", "wal_level": "logical", "fsync": "off"}
    with one_server(settings, request.param) as server:
        yield server


@pytest.fixture
def actor(server: EmbeddedServer) -> Iterator[Actor]:
    """A process with a new database, all of whose tables are published."""
    with Actor({"default": Env.db_url_config(new_database(server, "published"))}) as actor:
        actor.do(manage, "migrate", "django_pgqueue", verbosity=0)
        yield actor
        actor.rest()


def run(actor: Actor, statement: str) -> Any:
    return actor.do(execute, statement)


QUEUES: dict[str, dict[str, Any]] = {
    "plain": {"max_deliveries": 2},
    "daily": {"partition_interval": dt.timedelta(days=1)},
    "fast": {"unlogged": True},
}


@pytest.mark.parametrize("name", QUEUES)
def test_a_publication_for_all_tables_stops_nothing(actor, name):
    run(actor, "CREATE PUBLICATION everything FOR ALL TABLES")
    actor.do(call, "create_queue", name, **QUEUES[name])

    actor.do(call, "send_batch", name, list(range(40)))
    actor.do(call, "send", name, "later", delay=60)
    actor.do(call, "send", name, "once", unique="k")
    actor.do(call, "send_batch", name, ["g1", "g2", "g3"], group="g")
    grouped = actor.do(call, "read_grouped", name, qty=2)
    actor.do(call, "archive", name, [message.receipt for message in grouped])
    batch = actor.do(call, "read", name, qty=30)
    actor.do(call, "archive", name, [message.receipt for message in batch[:10]])
    actor.do(call, "retry", name, {batch[10].receipt: 0})
    actor.do(call, "delete", name, batch[11].receipt)
    actor.do(call, "set_vt", name, batch[12].receipt, 60)
    actor.do(call, "purge", name)
    actor.do(call, "maintain", name)

    assert actor.do(call, "metrics", name).length == 0
    assert actor.do(call, "drop_queue", name) is True


def test_every_logged_table_has_a_replica_identity(actor):
    actor.do(call, "create_queue", "daily", partition_interval=dt.timedelta(days=1))

    without = run(
        actor,
        "SELECT relname FROM pg_class c WHERE relname LIKE 'pgqueue%' AND relkind IN ('r', 'p') "
        "AND relpersistence = 'p' AND NOT (relreplident = 'f' OR EXISTS ("
        "SELECT FROM pg_index i WHERE i.indrelid = c.oid AND ("
        "relreplident = 'd' AND indisprimary OR relreplident = 'i' AND indisreplident)))",
    )

    assert without == []


def test_messages_and_outcomes_can_be_subscribed_to(server, actor):
    for name, options in QUEUES.items():
        actor.do(call, "create_queue", name, **options)
        actor.do(call, "send", name, "before")
    run(
        actor,
        "CREATE PUBLICATION log FOR TABLE pgqueue_message, pgqueue_archive, pgqueue_queue "
        "WITH (publish_via_partition_root = true)",
    )
    run(actor, "SELECT pg_create_logical_replication_slot('log', 'pgoutput')")
    source = psycopg.conninfo.make_conninfo(server.url("published"))
    with psycopg.connect(new_database(server, "log"), autocommit=True) as log:
        log.execute(
            "CREATE TABLE pgqueue_message (id bigint, enqueued_at timestamptz, "
            "scheduled_at timestamptz, expires_at timestamptz, enqueued_xid bigint, "
            "failure bigint, queue_id integer, source_id integer, priority smallint, "
            "group_key text, unique_key text, headers jsonb, body jsonb, "
            "PRIMARY KEY (id, queue_id, enqueued_at))"
        )
        log.execute(
            "CREATE TABLE pgqueue_archive (id bigint, enqueued_at timestamptz, "
            "first_read_at timestamptz, last_read_at timestamptz, archived_at timestamptz, "
            "archive_xid bigint, failure bigint, queue_id integer, read_ct integer, "
            "attempts integer, state text, error text, result jsonb, "
            "PRIMARY KEY (id, queue_id, enqueued_at))"
        )
        log.execute(
            "CREATE TABLE pgqueue_queue (id integer PRIMARY KEY, name text, "
            "visibility_timeout integer, max_deliveries integer, retention interval, "
            "partition_interval interval, unique_window interval, age_limit interval, "
            '"limit" integer, rate text, burst integer, group_limit integer, group_rate text, '
            "group_burst integer, has_slots boolean, "
            "unlogged boolean, paused boolean, notify boolean, created_at timestamptz, "
            "dead_letter_queue_id integer, source_id integer, keep_for interval, "
            "archive_completed boolean)"
        )
        log.execute(
            f"CREATE SUBSCRIPTION log CONNECTION '{source}' PUBLICATION log "
            f"WITH (create_slot = false, slot_name = 'log')"
        )
        try:
            for name in QUEUES:
                actor.do(call, "send", name, "after")
                [message] = actor.do(call, "read", name)
                actor.do(call, "archive", name, message.receipt)
            actor.do(call, "send", "plain", "deleted")
            actor.do(call, "delete", "plain", actor.do(call, "read", "plain")[0].receipt)
            table = (
                "SELECT q.name, m.body, m.enqueued_xid, a.state FROM pgqueue_message m "
                "JOIN pgqueue_queue q ON q.id = m.queue_id AND NOT q.unlogged "
                "LEFT JOIN pgqueue_archive a ON (a.id, a.queue_id, a.enqueued_at) "
                "= (m.id, m.queue_id, m.enqueued_at) ORDER BY m.id"
            )

            there = run(actor, table)

            assert [row[0] for row in there] == ["plain", "daily", "daily", "plain"]
            assert {row[-1] for row in there} == {"COMPLETED", None}
            until(lambda: [row[2:] for row in log.execute(table)] == [row[2:] for row in there], 60)
        finally:
            log.execute("ALTER SUBSCRIPTION log DISABLE")
            log.execute("ALTER SUBSCRIPTION log SET (slot_name = NONE)")
            log.execute("DROP SUBSCRIPTION log")
    until(lambda: run(actor, "SELECT active FROM pg_replication_slots") == [(False,)], 30)
    run(actor, "SELECT pg_drop_replication_slot('log')")
