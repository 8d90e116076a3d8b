"""Random operations around a source and its subscriptions, compared with a plain Python model.

Transactions that send and that let messages leave the source stay open, and end in any order,
either way. What would wait for one of them is given up after a moment, and must have changed
nothing.
`MODEL_EXAMPLES`, `MODEL_STEPS` and `MODEL_SEED` work as in tests/acceptance/test_model.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from django_pgqueue import bare
from django_pgqueue.engine.redrive.redriving import redrive
from django_pgqueue.engine.settle.settling import purge
from django_pgqueue.engine.subscriptions import positions, reading
from django_pgqueue.management.jobs import url_of
from django_pgqueue.models import queue
from django_pgqueue.types import Receipt
from tests.acceptance.test_model import EXAMPLES, SEED, STEPS
from tests.conftest import run_sql

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]

T = TypeVar("T")

LONG = 3600
#: Milliseconds after which a statement that waits for another transaction is given up.
PATIENCE = 25

writers = st.integers(0, 2)
readers = st.integers(0, 1)
picks = st.integers(0, 999)
flags = st.lists(st.booleans(), min_size=1, max_size=8)


class View:
    """What a subscription should have of the messages, by their ids."""

    def __init__(self) -> None:
        #: Messages that it has acknowledged, or left out when it was moved forward.
        self.done: set[int] = set()
        #: Those that it holds, and their last receipts.
        self.held: dict[int, Receipt] = {}
        #: Those that it has had, and that come again, whatever the source does.
        self.own: set[int] = set()
        #: Receipts of messages that were given back: good until the next delivery.
        self.last: dict[int, Receipt] = {}
        self.stale: list[Receipt] = []

    def waiting(self, known: set[int]) -> set[int]:
        return known - self.done - set(self.held)

    def end(self, pk: int) -> None:
        """The message's last receipt is good no longer."""
        for receipts in (self.held, self.last):
            if pk in receipts:
                self.stale.append(receipts.pop(pk))

    def give_back(self, pk: int) -> None:
        self.own.add(pk)
        self.last[pk] = self.held.pop(pk)


class SubscriptionMachine(RuleBasedStateMachine):
    """Each rule does the same to the queues and to the model, and compares the results."""

    number = 0

    @initialize()
    def start(self) -> None:
        SubscriptionMachine.number += 1
        stem = f"model-{os.getpid()}-{SubscriptionMachine.number}"
        self.names = {"source": stem, "dead": f"{stem}-dead"}
        queue(self.names["dead"]).create()
        queue(stem).create(dead_letter_queue=self.names["dead"])
        self.sessions = [psycopg.connect(url_of("default"), autocommit=True) for _ in range(4)]
        for session in self.sessions:
            session.execute(f"SET lock_timeout = {PATIENCE}")
        self.sources = [bare.open_queue(session, stem) for session in self.sessions]
        self.dead = bare.open_queue(self.sessions[3], self.names["dead"])
        self.views: list[View] = []
        self.queues: list[bare.OpenQueue] = []
        #: Committed messages, in the source or not, and those of them that the source has.
        self.known: set[int] = set()
        self.stored: set[int] = set()
        self.cancelled: set[int] = set()
        #: What each open transaction has sent, and what it lets leave.
        self.open: dict[int, tuple[list[int], set[int]]] = {}
        self.sender: dict[int, int] = {}
        self.transactions = 0
        self.subscribe("earliest")

    def teardown(self) -> None:
        if not hasattr(self, "views"):
            return
        for writer in list(self.open):
            self.finish(writer, commits=True)
        try:
            for number in range(len(self.views)):
                self.read(number, qty=500)
                self.expire(number)
                self.read(number, qty=500)
                self.settle(number, [True], 0, "archive")
                assert not self.views[number].waiting(self.visible()), "not all were delivered"
                self.has_nothing_left(number)
        finally:
            for session in self.sessions:
                session.close()
            for number in range(len(self.views)):
                queue(self.name_of(number)).drop()
            queue(self.names["source"]).drop()
            queue(self.names["dead"]).drop()

    def name_of(self, number: int) -> str:
        return f"{self.names['source']}-reader-{number}"

    def visible(self) -> set[int]:
        return self.known - self.cancelled

    def attempt(self, act: Callable[[], T]) -> T | None:
        """Run a step; None if it would have to wait for an open transaction."""
        try:
            return act()
        except psycopg.errors.LockNotAvailable:
            assert any(leaving for _, leaving in self.open.values()), "nothing is leaving"
            return None

    # The source

    @precondition(lambda self: len(self.open) < 3)
    @rule(writer=writers)
    def begin(self, writer: int) -> None:
        if writer not in self.open:
            self.sessions[writer].execute("BEGIN")
            self.open[writer] = [], set()
            self.transactions += 1
            self.sender[writer] = self.transactions

    @rule(writer=writers, number=st.integers(1, 4))
    def send(self, writer: int, number: int) -> None:
        ids = [int(pk) for pk in bare.send_batch(self.sources[writer], [0] * number)]
        if writer in self.open:
            self.open[writer][0].extend(ids)
        else:
            self.known.update(ids)
            self.stored.update(ids)

    @rule(writer=writers, pick=picks, which=st.sampled_from(["delete", "delete", "purge"]))
    def leave(self, writer: int, pick: int, which: str) -> None:
        """Let messages of other transactions, read or not, leave the source."""
        taken = set().union(*(leaving for _, leaving in self.open.values()), self.cancelled)
        choice = sorted(self.stored - taken)
        if not choice:
            return
        if which == "purge" and not self.open:
            purge(self.sources[writer])
            self.stored = set(self.cancelled & self.stored)
            return
        ids = [choice[pick % len(choice)], choice[pick // 7 % len(choice)]]
        session = self.sessions[writer]
        gone: set[int] = set()

        def delete() -> None:
            with session.transaction():  # a savepoint, within a transaction
                gone.update(bare.delete(self.sources[writer], ids))

        self.attempt(delete)
        if session.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            assert not gone or gone == set(ids)
            self.stored -= gone
        else:
            self.open[writer][1].update(gone)

    @rule(pick=picks)
    def cancel(self, pick: int) -> None:
        taken = set().union(*(leaving for _, leaving in self.open.values()), self.cancelled)
        if choice := sorted(self.stored - taken):
            pk = choice[pick % len(choice)]
            done = self.attempt(lambda: bare.cancel(self.sources[3], [pk]))
            self.cancelled.update(done or ())

    @precondition(lambda self: not self.open)
    @rule(pick=picks, back=st.booleans())
    def dead_letter(self, pick: int, back: bool) -> None:
        source = self.sources[3]
        for message in bare.read(source, qty=pick % 3 + 1, vt=LONG):
            bare.fail(source, {message.receipt: "as told"})
            self.stored.discard(message.id)
        if back:
            redrive(self.dead)

    @rule(writer=writers, commits=st.booleans())
    def finish(self, writer: int, commits: bool) -> None:
        if writer not in self.open:
            return
        sent, leaving = self.open.pop(writer)
        self.sessions[writer].execute("COMMIT" if commits else "ROLLBACK")
        if commits:
            self.known.update(sent)
            self.stored.update(sent)
            self.stored -= leaving

    # The subscriptions

    @precondition(lambda self: len(self.views) < 2)
    @rule(start=st.sampled_from(["earliest", "now", 0]), pick=picks)
    def begin_another(self, start: Any, pick: int) -> None:
        # It waits for the locks of all that write to the source.
        if not self.open:
            self.subscribe(self.id_at(pick) if start == 0 else start)

    def subscribe(self, start: Any) -> None:
        number = len(self.views)
        name = self.name_of(number)
        place = self.behind(start)
        queue(name).subscribe(to=self.names["source"], start=start, max_deliveries=100_000)
        self.queues.append(bare.open_queue(self.sessions[3], name))
        view = View()
        view.done = self.known - place
        self.views.append(view)

    @rule(number=readers, qty=st.sampled_from([1, 2, 5, 20]), forgets=st.booleans())
    def read(self, number: int, qty: int, forgets: bool = True) -> None:
        if number >= len(self.views):
            return
        if forgets:  # as another process
            reading._memories.clear()
        view = self.views[number]
        waiting = view.waiting(self.visible())
        found = self.attempt(lambda: bare.read(self.queues[number], qty=qty, vt=LONG))
        if found is None:
            # Messages of its own may have been leased before it had to wait.
            self.learn(number)
            return
        ids = [message.id for message in found]
        assert len(ids) == len(set(ids)), "one message twice in a read"
        assert set(ids) <= waiting, "delivered, though it must not be"
        leaving = set().union(*(leaving for _, leaving in self.open.values()))
        if len(ids) < qty:
            # A lease that another transaction has locked is skipped.
            assert waiting - set(ids) <= leaving, "a message was passed over"
        for message in found:
            view.end(message.id)
            view.held[message.id] = message.receipt
            view.own.discard(message.id)

    def learn(self, number: int) -> None:
        """Take back what an unfinished read has leased: its receipts are unknown."""
        pk = self.queues[number].id
        held = set(self.views[number].held)
        run_sql(
            "UPDATE pgqueue_deferred SET vt = statement_timestamp() - interval '1 day' "
            "WHERE queue_id = %s AND id <> ALL(%s)",
            [pk, list(held)],
        )

    @rule(
        number=readers,
        which=flags,
        first=picks,
        way=st.sampled_from(
            ["archive", "archive", "delete", "retry", "release", "set_vt", "stale"]
        ),
    )
    def settle(self, number: int, which: Sequence[bool], first: int, way: str) -> None:
        if number >= len(self.views):
            return
        view, subscription = self.views[number], self.queues[number]
        ids = sorted(view.held)
        chosen = [pk for n, pk in enumerate(ids) if which[(n + first) % len(which)]]
        receipts = [view.held[pk] for pk in chosen]
        if way == "stale":
            receipts = view.stale[-3:]
        if not receipts:
            return
        acts: dict[str, Callable[[], Any]] = {
            "archive": lambda: bare.archive(subscription, receipts),
            "delete": lambda: bare.delete(subscription, receipts),
            "retry": lambda: bare.retry(subscription, dict.fromkeys(receipts, 0)),
            "release": lambda: bare.release(subscription, receipts),
            "set_vt": lambda: bare.set_vt(subscription, receipts, LONG),
            "stale": lambda: bare.archive(subscription, receipts),
        }

        def act() -> Any:
            with self.sessions[3].transaction():
                return acts[way]()

        done = self.attempt(act)
        if done is None:
            return
        if way == "stale":
            assert done == []
            return
        assert sorted(done) == chosen, f"{way} by the last receipts"
        for pk in chosen:
            if way in ("archive", "delete"):
                view.done.add(pk)
                view.end(pk)
            elif way in ("retry", "release"):
                view.give_back(pk)

    def leaving(self) -> bool:
        return any(leaving for _, leaving in self.open.values())

    @precondition(lambda self: not self.leaving())
    @rule(number=readers)
    def expire(self, number: int) -> None:
        if number >= len(self.views):
            return
        view, pk = self.views[number], self.queues[number].id
        for table in ("lease", "deferred"):
            run_sql(
                f"UPDATE pgqueue_{table} SET vt = statement_timestamp() - interval '1 day' "
                "WHERE queue_id = %s",
                [pk],
            )
        for held in list(view.held):
            view.give_back(held)

    @precondition(lambda self: not self.leaving())
    @rule(number=readers, to=st.sampled_from(["earliest", "now", 0, 0]), pick=picks)
    def seek(self, number: int, to: Any, pick: int) -> None:
        if number >= len(self.views):
            return
        target = self.id_at(pick) if to == 0 else to
        place, view = self.behind(target), self.views[number]
        copied = {
            pk
            for (pk,) in run_sql(
                "SELECT id FROM pgqueue_message WHERE queue_id = %s", [self.queues[number].id]
            )
        }
        positions.seek(self.queues[number], target)
        passed = self.in_source() - place
        view.done |= passed & (view.waiting(self.known) - copied - view.own)
        for pk in place:
            view.end(pk)
        view.done -= place
        view.own -= place

    def id_at(self, pick: int) -> int:
        ids = sorted(self.known) or [1]
        return ids[pick % len(ids)] + pick % 2

    def in_source(self) -> set[int]:
        """The committed messages of the source that its subscriptions do not skip."""
        return set(self.stored)

    def behind(self, target: Any) -> set[int]:
        """The messages of the source behind a new position."""
        if target == "now":
            return set()
        if target == "earliest":
            return self.in_source()
        rows = run_sql(
            "SELECT id FROM pgqueue_message WHERE queue_id = %s ORDER BY enqueued_xid, id",
            [self.sources[3].id],
        )
        ids = [pk for (pk,) in rows]
        first = next((n for n, pk in enumerate(ids) if pk >= target), len(ids))
        return set(ids[first:]) & self.in_source()

    def has_nothing_left(self, number: int) -> None:
        pk = self.queues[number].id
        for table in ("lease", "deferred", "ready"):
            rows = run_sql(f"SELECT 1 FROM pgqueue_{table} WHERE queue_id = %s", [pk])
            assert rows == [], table

    @invariant()
    def each_position_is_one_row(self) -> None:
        for subscription in getattr(self, "queues", ()):
            rows = run_sql("SELECT 1 FROM pgqueue_cursor WHERE queue_id = %s", [subscription.id])
            assert len(rows) == 1

    @invariant()
    def no_message_has_two_places(self) -> None:
        for subscription in getattr(self, "queues", ()):
            ids = [
                pk
                for (pk,) in run_sql(
                    "SELECT unnest(ids) FROM pgqueue_lease WHERE queue_id = %s UNION ALL "
                    "SELECT id FROM pgqueue_deferred WHERE queue_id = %s UNION ALL "
                    "SELECT id FROM pgqueue_ready WHERE queue_id = %s",
                    [subscription.id] * 3,
                )
            ]
            assert len(ids) == len(set(ids))


def test_any_operations_in_any_order(committed):
    machine = seeded(int(SEED))(SubscriptionMachine) if SEED else SubscriptionMachine
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            derandomize=False,
            print_blob=True,
            phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )
