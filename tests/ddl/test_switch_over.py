"""The blue/green switch-over of docs/replication.md, from one server to another."""

from __future__ import annotations

import datetime as dt
import subprocess
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from environ import Env
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from django_pgqueue.embedded.server import EmbeddedServer
from tests.actors import Actor, call, manage, work_off
from tests.conftest import VERSIONS
from tests.servers import two_servers
from tests.waiting import until

pytestmark = pytest.mark.slow

SETTINGS = {
    "shared_buffers": "32MB",
    "max_connections": "30",
    "wal_level": "logical",
    "wal_receiver_status_interval": "1s",
    "fsync": "off",
}


@pytest.fixture(params=VERSIONS)
def servers(request: pytest.FixtureRequest) -> Iterator[tuple[EmbeddedServer, EmbeddedServer]]:
    """The old and the new server, both running."""
    with two_servers(SETTINGS, request.param) as (old, new), old, new:
        if not (old.bin_dir / "pg_dump").exists():
            pytest.skip("needs pg_dump")
        yield old, new


def run(server: EmbeddedServer, statement: str) -> Any:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else None


def copy_schema(old: EmbeddedServer, new: EmbeddedServer) -> None:
    dump = [old.bin_dir / "pg_dump", "--schema-only", old.url()]
    text = subprocess.run(dump, check=True, capture_output=True).stdout
    load = [old.bin_dir / "psql", "--quiet", "--set=ON_ERROR_STOP=1", new.url()]
    subprocess.run(load, input=text, check=True, capture_output=True)


def subscribe(old: EmbeddedServer, new: EmbeddedServer) -> None:
    source = make_conninfo(**conninfo_to_dict(old.url()))
    run(old, "CREATE PUBLICATION everything FOR ALL TABLES")
    run(new, f"CREATE SUBSCRIPTION green CONNECTION '{source}' PUBLICATION everything")


def until_caught_up(old: EmbeddedServer, new: EmbeddedServer) -> None:
    """Wait until every table was copied and every change of the old server has arrived."""
    states = "SELECT DISTINCT srsubstate::text FROM pg_subscription_rel"
    until(lambda: run(new, states) == [("r",)], 60)
    [(end,)] = run(old, "SELECT pg_current_wal_flush_lsn()")
    confirmed = f"SELECT confirmed_flush_lsn >= '{end}' FROM pg_replication_slots"
    until(lambda: run(old, confirmed) == [(True,)], 60)


def test_a_switch_over_loses_nothing_and_keeps_leases(servers):
    old, new = servers
    with Actor({"default": Env.db_url_config(old.url())}) as blue:
        blue.do(manage, "migrate", "django_pgqueue", verbosity=0)
        blue.do(call, "create_queue", "plain")
        blue.do(call, "create_queue", "daily", partition_interval=dt.timedelta(days=1))
        blue.do(call, "create_queue", "groups")
        blue.do(call, "send_batch", "plain", list(range(40)))
        done = blue.do(call, "read", "plain", qty=3)
        blue.do(call, "archive", "plain", [message.receipt for message in done])

        copy_schema(old, new)
        subscribe(old, new)
        # Senders and consumers continue while the tables are copied.
        batch = blue.do(call, "read", "plain", qty=20, vt=600)
        blue.do(call, "archive", "plain", [message.receipt for message in batch[:5]])
        blue.do(call, "send_batch", "plain", [40, 41], priority=5)
        blue.do(call, "send", "plain", "once", unique="k", delay=600)
        blue.do(call, "send_batch", "daily", ["d1", "d2"])
        blue.do(call, "send_batch", "groups", ["g1", "g2", "g3"], group="g")
        [head] = blue.do(call, "read", "groups", vt=600)
        [(last,)] = run(old, "SELECT max(id) FROM pgqueue_message")
        until_caught_up(old, new)
        run(new, "DROP SUBSCRIPTION green")
    old.kill("immediate")

    run(new, "SELECT * FROM pgqueue_advance_ids(1000)")
    with Actor({"default": Env.db_url_config(new.url())}) as green:
        pk = green.do(call, "send", "plain", "after")
        again = green.do(call, "send", "plain", "twice?", unique="k")
        held = [message.receipt for message in batch[5:]]
        settled = green.do(call, "archive", "plain", held)
        followers = green.do(call, "read", "groups")
        green.do(call, "archive", "groups", head.receipt)

        assert pk > last + 1000
        assert again <= last
        assert (len(settled), settled.lost, followers) == (15, [], [])
        assert green.do(work_off, "plain") == [40, 41, *range(23, 40), "after"]
        assert green.do(work_off, "daily") == ["d1", "d2"]
        assert green.do(work_off, "groups") == ["g2", "g3"]
        assert green.do(call, "metrics", "plain").length == 1
        green.do(call, "create_queue", "new")
        assert green.do(call, "send", "new", 1) > pk


def test_ids_that_are_given_out_again_block_no_queue(servers):
    """Without the step that advances the sequences."""
    old, new = servers
    with Actor({"default": Env.db_url_config(old.url())}) as blue:
        blue.do(manage, "migrate", "django_pgqueue", verbosity=0)
        blue.do(call, "create_queue", "plain")
        blue.do(call, "create_queue", "other")
        blue.do(call, "send_batch", "plain", ["a", "b"])
        copy_schema(old, new)
        subscribe(old, new)
        until_caught_up(old, new)
        run(new, "DROP SUBSCRIPTION green")

    with Actor({"default": Env.db_url_config(new.url())}) as green:
        ids = [green.do(call, "send", name, name) for name in ("plain", "other")]

        assert ids == [1, 2]
        assert sorted(green.do(work_off, "plain")) == ["a", "b", "plain"]
        assert green.do(work_off, "other") == ["other"]
