"""Five subscriptions under faults: killed, frozen and cut off readers, a crash, a promoted standby.

Senders commit late and roll back, and messages leave the source at random. At the end each
subscription has acknowledged every committed message, and had none again after its ack.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from environ import Env

from django_pgqueue import bare
from django_pgqueue.embedded.server import EmbeddedServer
from django_pgqueue.engine.subscriptions import reading
from tests.actors import Actor, call, manage
from tests.promises.full_speed import Journal, Note
from tests.servers import copy, two_servers
from tests.subscriptions import oracle
from tests.subscriptions.gates import subscribe
from tests.waiting import until

pytestmark = [pytest.mark.acceptance]

ROOT = Path(__file__).resolve().parents[3]
NAMES = [f"reader-{number}" for number in range(5)]
SENDERS = 16
SCALE = float(os.environ.get("CHAOS_SCALE", "1"))


class Crowd:
    """The processes of a run; those of the first two subscriptions are the victims."""

    def __init__(self, folder: Path, server: EmbeddedServer, seed: int) -> None:
        self.folder, self.server, self.draw = folder, server, random.Random(seed)
        self.url, self.stop = folder / "url", folder / "stop"
        self.url.write_text(server.url())
        self.victims: list[tuple[subprocess.Popen[bytes], tuple[str, str]]] = []
        self.others: list[subprocess.Popen[bytes]] = []
        self.begun = 0

    def start(self) -> None:
        self.others = [self._start("send", "-") for _ in range(SENDERS)]
        self.others += [self._start(kind, "-") for kind in ("consume", "consume", "throw away")]
        for name in NAMES[2:]:
            self.others += [self._start("read", name)]
        for name in NAMES[:2]:
            for _ in range(2):
                self.victims.append((self._start("read", name), ("read", name)))
        until(lambda: len(list(self.folder.glob("*.notes"))) == self.begun, 120)

    def _start(self, kind: str, name: str) -> subprocess.Popen[bytes]:
        self.begun += 1
        notes = self.folder / f"{self.begun}.notes"
        arguments = [kind, name, self.url, notes, self.draw.randrange(10**6), self.stop]
        return subprocess.Popen(
            [sys.executable, "-m", "tests.acceptance.chaos.subscribers", *map(str, arguments)],
            cwd=ROOT,
        )

    def pause(self, seconds: float = 0.4) -> None:
        time.sleep(self.draw.uniform(0.2, 1) * seconds)

    # Faults

    def kill(self) -> None:
        number = self.draw.randrange(len(self.victims))
        process, what = self.victims[number]
        process.kill()
        process.wait()
        self.victims[number] = self._start(*what), what

    def freeze(self) -> None:
        """For longer than the leases."""
        process, _ = self.draw.choice(self.victims)
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.6)
        process.send_signal(signal.SIGCONT)

    def cut_off(self) -> None:
        with self.connect() as session:
            session.execute(
                "SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity "
                "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend' "
                "ORDER BY random() LIMIT 5) s"
            )

    def crash(self) -> None:
        self.server.kill("immediate")
        self.pause()
        self.server.start()

    def fail_over(self, standby: EmbeddedServer) -> None:
        """Promote the standby, when it has received all that the processes know to be committed."""
        everyone = [*self.others, *(process for process, _ in self.victims)]
        for process in everyone:
            process.send_signal(signal.SIGSTOP)
        with self.connect() as session:
            end = session.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
        with psycopg.connect(standby.url(), autocommit=True) as session:

            def replayed() -> bool:
                found = session.execute("SELECT pg_last_wal_replay_lsn() >= %s", end).fetchone()
                return found == (True,)

            with self.connect() as primary:
                primary.execute("CHECKPOINT")  # flushes the log to its end
            until(replayed, 60)
            self.server.kill("immediate")
            assert session.execute("SELECT pg_promote()").fetchone() == (True,)
        self.server = standby
        self.url.write_text(standby.url())
        for process in everyone:
            process.send_signal(signal.SIGCONT)

    # The end

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.server.url(), autocommit=True)

    def finish(self) -> None:
        self.stop.touch()
        for process in [*self.others, *(process for process, _ in self.victims)]:
            assert process.wait(60) == 0, "a process failed: its error is in the output"
        with self.connect() as session:
            journal = Journal(self.folder / "end.notes")
            for name in NAMES:
                until(lambda name=name: self._is_drained(session, journal, name), 90)
            journal.close()
            self.judge(session)

    @staticmethod
    def _is_drained(session: psycopg.Connection[Any], journal: Journal, name: str) -> bool:
        reading._memories.clear()
        queue = bare.open_queue(session, name)
        found = bare.read(queue, qty=200, vt=30)
        for event in ("read", "acked"):
            for each in found:
                pk, read_ct, read_at = each.receipt[:3]
                journal.note(event, queue=name, id=pk, read_at=read_at, read_ct=read_ct)
            if event == "read" and found:
                assert not bare.archive(queue, [each.receipt for each in found]).lost

        def run(statement: str, params: Any = None) -> list[tuple[Any, ...]]:
            return session.execute(statement, params).fetchall()

        return not found and not oracle.left_over(name, run)

    def judge(self, session: psycopg.Connection[Any]) -> None:
        def run(statement: str, params: Any = None) -> list[tuple[Any, ...]]:
            return session.execute(statement, params).fetchall()

        notes = self.notes()
        assert len(oracle.sent(run)) > 100
        for name in NAMES:
            assert not oracle.missed(notes, name, run), name
            assert not oracle.never_sent(notes, name, run), name
            assert not oracle.twice(notes, name), name

    def notes(self) -> list[Note]:
        return [
            {"by": path.stem, **json.loads(line)}
            for path in self.folder.glob("*.notes")
            for line in path.read_text().splitlines(keepends=True)
            if line.endswith("\n")
        ]

    def close(self) -> None:
        self.stop.touch()
        for process in [*self.others, *(process for process, _ in self.victims)]:
            process.kill()
            process.wait()


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[tuple[Crowd, EmbeddedServer]]:
    seed = int(os.environ.get("CHAOS_SEED") or random.SystemRandom().randrange(10**6))
    print(f"CHAOS_SEED={seed} CHAOS_SCALE={SCALE:g}")
    settings = {"shared_buffers": "64MB", "max_connections": "60", "fsync": "off"}
    with two_servers(settings) as (primary, standby), primary:
        with Actor({"default": Env.db_url_config(primary.url())}) as actor:
            actor.do(manage, "migrate", "django_pgqueue", verbosity=0)
            actor.do(call, "create_queue", "dead")
            actor.do(
                call, "create_queue", "orders", dead_letter_queue="dead", max_deliveries=10_000
            )
            for name in NAMES:
                actor.do(subscribe, name, "orders", "earliest", max_deliveries=10_000)
        with psycopg.connect(primary.url(), autocommit=True) as session:
            session.execute("CREATE TABLE tests_sent (id bigint)")
        found = Crowd(tmp_path, primary, seed)
        yield found, standby
        found.close()


def repeat(crowd: Crowd, acts: list[Callable[[], None]], times: int) -> None:
    for _ in range(max(1, int(times * SCALE))):
        crowd.pause()
        crowd.draw.choice(acts)()


def test_killed_frozen_and_cut_off_readers_lose_nothing_and_get_nothing_twice(crowd):
    crowd, _ = crowd
    crowd.start()

    repeat(crowd, [crowd.kill, crowd.freeze, crowd.cut_off], 12)

    crowd.finish()


def test_a_server_crash_takes_no_message_of_a_subscription(crowd):
    crowd, _ = crowd
    crowd.start()

    repeat(crowd, [crowd.crash], 2)
    repeat(crowd, [crowd.kill, crowd.cut_off], 3)

    crowd.finish()


def test_a_promoted_standby_goes_on_with_every_subscription(crowd):
    crowd, standby = crowd
    copy(crowd.server, standby)
    with standby:
        crowd.start()
        repeat(crowd, [crowd.kill], 2)

        crowd.fail_over(standby)
        repeat(crowd, [crowd.kill, crowd.freeze], 3)

        crowd.finish()
