"""A standby promoted without a checkpoint, with queues created just before."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import pytest
from environ import Env

from django_pgqueue.embedded.server import EmbeddedServer
from django_pgqueue.engine.read.reading import fall_asleep
from tests.actors import Actor, call, engine, manage, work_off
from tests.conftest import VERSIONS
from tests.servers import copy, two_servers
from tests.waiting import until

pytestmark = pytest.mark.slow

QUEUES = {
    "plain": {},
    "daily": {"partition_interval": dt.timedelta(days=1)},
    "fast": {"unlogged": True},
}


@dataclass
class Pair:
    """A primary, its standby, and a process that uses the primary."""

    primary: EmbeddedServer
    actor: Actor
    standby: EmbeddedServer

    def promote(self) -> None:
        """Promote the standby after it has received everything."""
        with psycopg.connect(self.primary.url(), autocommit=True) as connection:
            row = connection.execute("SELECT pg_current_wal_flush_lsn()").fetchone()
        with psycopg.connect(self.standby.url(), autocommit=True) as connection:

            def replayed() -> bool:
                found = connection.execute("SELECT pg_last_wal_replay_lsn() >= %s", row).fetchone()
                return found == (True,)

            until(replayed, 60)
            self.primary.kill("immediate")
            assert connection.execute("SELECT pg_promote()").fetchone() == (True,)


@pytest.fixture(params=VERSIONS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    settings = {"shared_buffers": "32MB", "max_connections": "30"}
    with (
        two_servers(settings, request.param) as (primary, standby),
        primary,
        Actor({"default": Env.db_url_config(primary.url())}) as actor,
    ):
        actor.do(manage, "migrate", "django_pgqueue", verbosity=0)
        copy(primary, standby)
        with standby:
            yield Pair(primary, actor, standby)


def test_queues_made_just_before_a_failover_work_after_it(pair):
    for name, options in QUEUES.items():
        pair.actor.do(call, "create_queue", name, **options)
        pair.actor.do(call, "send", name, "before", unique="k", until="done")
        for n in range(3):
            pair.actor.do(call, "send", name, n, group="g")

    # A consumer of one queue sleeps; of the others, a send has notified.
    pair.actor.do(engine, fall_asleep, "plain", heard=None, doubt=None)

    pair.promote()

    with Actor({"default": Env.db_url_config(pair.standby.url())}) as actor:
        for name in QUEUES:
            kept = [] if name == "fast" else [0, 1, 2]
            assert actor.do(call, "metrics", name).length == len(kept) + bool(kept)
            again = actor.do(call, "send", name, "after", unique="k", until="done")
            assert again.conflict == ("skipped" if kept else None)
            actor.do(call, "send", name, "after")
            actor.do(call, "send_batch", name, [3, 4], group="g")
            bodies = actor.do(work_off, name)
            assert [body for body in bodies if isinstance(body, int)] == [*kept, 3, 4]
            assert "after" in bodies
            again = actor.do(call, "send", name, "free", unique="k", until="done")
            assert again.conflict is None
        with psycopg.connect(pair.standby.url(), autocommit=True) as listener:
            listener.execute("LISTEN pgqueue")
            for name in QUEUES:
                actor.do(engine, fall_asleep, name, heard=None, doubt=None)
                actor.do(call, "send", name, "woken")
                [notice] = listener.notifies(timeout=20, stop_after=1)
                assert notice.payload == name


def test_a_lease_that_the_standby_never_got_is_delivered_again(pair):
    pair.actor.do(call, "create_queue", "plain")
    sent = pair.actor.do(call, "send_batch", "plain", list(range(21)))
    with psycopg.connect(pair.primary.url(), autocommit=True) as connection:
        # Unflushed leases reach the standby later than their commit.
        connection.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
        connection.execute("ALTER SYSTEM SET wal_writer_flush_after = '1GB'")
        connection.execute("SELECT pg_reload_conf()")
    old = [pair.actor.do(call, "read", "plain")[0] for _ in range(5)]
    old += pair.actor.do(call, "read", "plain", qty=16)

    pair.promote()

    with Actor({"default": Env.db_url_config(pair.standby.url())}) as actor:
        held = actor.do(call, "metrics", "plain").in_flight
        again = actor.do(call, "read", "plain", qty=21)
        assert held + len(again) == 21
        leased_again = {message.id for message in again}
        settled = actor.do(call, "complete", "plain", [message.receipt for message in old])
        assert {receipt.id for receipt in settled.lost} == leased_again
        actor.do(call, "complete", "plain", [message.receipt for message in again])
        assert actor.do(call, "metrics", "plain").archived == len(sent)
