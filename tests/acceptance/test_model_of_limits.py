"""Random operations on a queue with limits, compared with a plain Python model.

The limits of the queue's groups, of single groups and of the whole queue change meanwhile, and
groups are paused. A rate does not change. `test_model.py` checks everything else, in queues without
limits. `MODEL_EXAMPLES`, `MODEL_STEPS` and `MODEL_SEED` work as there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

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

from django_pgqueue.models import BoundQueue, Message, Queue
from django_pgqueue.types import Receipt
from tests.acceptance.test_model import EXAMPLES, LONG, MAX_DELIVERIES, SEED, STEPS
from tests.conftest import run_sql

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]

groups = st.sampled_from([None, "a", "a", "a", "b"])
named = st.sampled_from(["a", "a", "b"])
limits = st.sampled_from([None, 1, 2, 3])
picks = st.integers(0, 999)


@dataclass
class Entry:
    """A live message, as the model sees it."""

    id: int
    body: Any
    group: str | None
    #: Whether it is neither leased nor delayed, or no longer.
    due: bool = True
    leased: bool = False
    #: The last receipt, which settles the message until it is delivered again.
    receipt: Receipt | None = None
    read_ct: int = 0
    attempts: int = 0
    error: str | None = None
    #: Whether its group may start later messages first: it was started or delayed while the group
    #: had several slots, or was redriven.
    unordered: bool = False

    @property
    def in_flight(self) -> bool:
        return self.leased and not self.due


class LimitMachine(RuleBasedStateMachine):
    """Each rule does the same to the queue and to the model, and compares the results."""

    number = 0

    @initialize(
        group_limit=st.sampled_from([1, 2, 3]),
        limit=st.sampled_from([None, None, 2, 4]),
        rate=st.sampled_from([None, None, "1/h"]),
        burst=st.integers(1, 2),
    )
    def start(self, group_limit: int, limit: int | None, rate: str | None, burst: int) -> None:
        LimitMachine.number += 1
        self.name = f"limits-{os.getpid()}-{self.number}"
        self.dead = Message.objects.create_queue(f"{self.name}-dead")
        self.main = Message.objects.create_queue(
            self.name,
            visibility_timeout=LONG,
            dead_letter_queue=self.dead,
            max_deliveries=MAX_DELIVERIES,
        )
        self.queue = BoundQueue(self.name)
        self.change(group_limit=2)
        # With a rate and no limit, the burst is the number of slots.
        if rate is not None and group_limit == 1:
            self.change(group_limit=None, group_rate=rate, group_burst=burst, limit=limit)
        else:
            self.change(group_limit=group_limit, group_rate=rate, limit=limit)
        self.live: dict[int, Entry] = {}
        self.died: list[Entry] = []
        self.receipts: list[Receipt] = []
        self.exceptions: dict[str, tuple[int | None, bool]] = {}
        self.sent = 0
        self.hours = 0
        self.starts: dict[str, list[int]] = {}
        self.most_slots = max(group_limit, burst)

    def teardown(self) -> None:
        if not hasattr(self, "queue"):
            return
        try:
            self.drain()
        finally:
            self.queue.drop()
            self.dead.delete()

    def change(self, **values: Any) -> None:
        Queue.objects.filter(pk=self.main.pk).update(**values)
        self.main.refresh_from_db()

    # The model

    def limit_of(self, group: str) -> int | None:
        """The most messages of a group in flight, or None if it only has a rate."""
        own, _ = self.exceptions.get(group, (None, False))
        limit = own or self.main.group_limit
        return limit or (None if self.main.group_rate else 1)

    def is_paused(self, group: str | None) -> bool:
        return group is not None and self.exceptions.get(group, (None, False))[1]

    def is_fifo(self, group: str | None) -> bool:
        return group is not None and self.limit_of(group) == 1 and not self.main.group_rate

    def of(self, group: str | None) -> list[Entry]:
        return [self.live[pk] for pk in sorted(self.live) if self.live[pk].group == group]

    def in_flight(self, group: str | None = None) -> int:
        entries = self.live.values() if group is None else self.of(group)
        return sum(entry.in_flight for entry in entries)

    def put_off(self, entry: Entry) -> None:
        """A message is no longer due. Later messages of its group may start before it."""
        entry.due = False
        entry.unordered |= not self.is_fifo(entry.group)

    def loosen(self) -> None:
        """After a change: messages that are delayed hold no slot."""
        for entry in self.live.values():
            if not self.is_fifo(entry.group):
                entry.unordered |= not entry.in_flight and not entry.due

    # Sending

    @rule(
        each=st.lists(groups, min_size=1, max_size=5), later=st.sampled_from([False, False, True])
    )
    def send(self, each: list[str | None], later: bool) -> None:
        bodies = [self.sent + place for place in range(len(each))]
        self.sent += len(each)
        ids = self.queue.send_batch(bodies, group=each, delay=LONG if later else 0)
        for pk, body, group in zip(ids, bodies, each, strict=True):
            entry = self.live[int(pk)] = Entry(int(pk), body, group)
            if later:
                self.put_off(entry)

    # Reading

    @rule(qty=st.sampled_from([1, 2, 20]), how=st.sampled_from(["read", "read", "read_grouped"]))
    def read(self, qty: int, how: str) -> None:
        found = getattr(self.queue, how)(qty=qty)

        self.note_dead_letters()
        assert len(found) <= qty
        for message in found:
            self.begin(message)
        for group in {message.group_key for message in found} - {None}:
            limit = self.limit_of(group)
            assert limit is None or self.in_flight(group) <= limit, "above the limit of the group"
        if found and self.main.limit:
            assert self.in_flight() <= self.main.limit, "above the limit of the queue"
        if len(found) < qty:
            self.expect_nothing_left()

    def begin(self, message: Message) -> None:
        entry = self.live[message.id]
        assert entry.due, "in flight or delayed"
        assert not self.is_paused(entry.group), "started in a pause"
        if self.is_fifo(entry.group):
            earlier = [e for e in self.of(entry.group) if e.id < entry.id and not e.unordered]
            assert not earlier or entry.unordered, "out of order"
        entry.due, entry.leased, entry.receipt = False, True, message.receipt
        entry.unordered |= not self.is_fifo(entry.group)
        entry.read_ct += 1
        assert (message.body, message.read_ct, message.attempts) == (
            entry.body,
            entry.read_ct,
            entry.attempts,
        )
        self.receipts.append(message.receipt)
        if entry.group is not None:
            self.note_start(entry.group)

    def note_start(self, group: str) -> None:
        starts = self.starts.setdefault(group, [])
        starts.append(self.hours)
        if self.main.group_rate:
            for began in set(starts):
                within = sum(began <= at for at in starts)
                assert within <= self.hours - began + self.most_slots, "above the rate"

    def note_dead_letters(self) -> None:
        gone = run_sql("SELECT id FROM pgqueue_message WHERE queue_id = %s", [self.dead.pk])
        for (pk,) in gone:
            if pk in self.live:
                entry = self.live.pop(pk)
                self.died.append(entry)
                assert entry.due, "dead-lettered in flight"
                assert entry.read_ct >= MAX_DELIVERIES, "dead-lettered too early"

    def expect_nothing_left(self) -> None:
        if self.main.limit:
            return  # an expired lease frees its slot for the next read only
        for group in {entry.group for entry in self.live.values()}:
            left = [entry for entry in self.of(group) if entry.due]
            if group is None:
                assert not left, "there was more to read"
            elif not self.is_paused(group) and not self.main.group_rate:
                limit = self.limit_of(group)
                assert limit is not None
                delayed = any(not e.due and not e.in_flight for e in self.of(group))
                assert not left or self.in_flight(group) >= limit or (limit == 1 and delayed), (
                    "there was more to read"
                )

    # Settling

    def held(self, receipt: Receipt, done: Any, *, leased: bool = False) -> Entry | None:
        """The message for which a receipt is valid, after checking that the queue agrees.

        ``leased``: whether the message must still be leased.
        """
        entry = self.live.get(receipt.id)
        if entry is not None and (entry.receipt != receipt or (leased and not entry.leased)):
            entry = None
        if entry is not None and done.lost:
            # It waits for a slot, or its lease expired and it lost its slot.
            assert not entry.leased or entry.due
            entry.leased, entry.receipt = False, None
            entry = None
        assert list(done) == ([] if entry is None else [entry.id])
        return entry

    @precondition(lambda self: self.receipts)
    @rule(number=picks, how=st.sampled_from(["archive", "archive", "delete", "fail"]))
    def end(self, number: int, how: str) -> None:
        receipt = self.receipts[-1 - number % len(self.receipts)]
        done = getattr(self.queue, how)({receipt: "as told"} if how == "fail" else [receipt])
        entry = self.held(receipt, done)
        if entry is not None:
            del self.live[entry.id]
            if how == "fail":
                self.died.append(entry)

    @precondition(lambda self: self.receipts)
    @rule(number=picks, later=st.booleans(), error=st.sampled_from([None, "busy", "away"]))
    def retry(self, number: int, later: bool, error: str | None) -> None:
        receipt = self.receipts[-1 - number % len(self.receipts)]
        errors = {receipt: error} if error else None
        done = self.queue.retry({receipt: LONG if later else 0}, errors=errors)
        entry = self.held(receipt, done, leased=True)
        if entry is not None:
            entry.leased, entry.due = False, True
            entry.attempts += 1
            entry.error = error or entry.error
            if later:
                self.put_off(entry)

    @precondition(lambda self: self.receipts)
    @rule(number=picks)
    def release(self, number: int) -> None:
        receipt = self.receipts[-1 - number % len(self.receipts)]
        entry = self.held(receipt, self.queue.release([receipt]), leased=True)
        if entry is not None:
            entry.leased, entry.receipt, entry.due = False, None, True
            entry.read_ct -= 1

    @precondition(lambda self: self.receipts)
    @rule(number=picks, later=st.booleans())
    def extend(self, number: int, later: bool) -> None:
        receipt = self.receipts[-1 - number % len(self.receipts)]
        before = self.in_flight()
        entry = self.held(receipt, self.queue.set_vt(receipt, LONG if later else 0))
        if entry is not None:
            entry.due = True
            if later and entry.leased:
                entry.due = False
            elif later:
                self.put_off(entry)
            limit = self.limit_of(entry.group) if entry.group else None
            if self.in_flight() > before and limit is not None and entry.group:
                assert self.in_flight(entry.group) <= limit, "above the limit of the group"

    @precondition(lambda self: self.live)
    @rule(number=picks, how=st.sampled_from(["archive", "delete", "later", "now"]))
    def operate(self, number: int, how: str) -> None:
        """An operator removes a message by id, or changes when one that is not leased is due."""
        entry = self.live[sorted(self.live)[number % len(self.live)]]
        if how in ("archive", "delete"):
            assert getattr(self.queue, how)([entry.id]) == [entry.id]
            del self.live[entry.id]
        elif not entry.leased:
            assert self.queue.set_vt([entry.id], LONG if how == "later" else 0) == [entry.id]
            if how == "later":
                self.put_off(entry)
            else:
                entry.due = True

    @precondition(lambda self: self.live)
    @rule(sure=st.integers(0, 9))
    def purge(self, sure: int) -> None:
        if sure == 0:
            assert self.queue.purge() == len(self.live)
            self.live.clear()

    @precondition(lambda self: self.died)
    @rule()
    def redrive(self) -> None:
        assert BoundQueue(self.dead.name).redrive() == len(self.died)
        for entry in self.died:
            self.live[entry.id] = Entry(entry.id, entry.body, entry.group, unordered=True)
        self.died.clear()

    # Settings, and time

    @rule(limit=limits)
    def set_limit_of_groups(self, limit: int | None) -> None:
        if self.main.group_rate:
            return  # then the number of slots depends on it
        self.change(group_limit=limit)
        self.loosen()

    @rule(group=named, limit=limits, paused=st.sampled_from([False, False, True]))
    def set_exception(self, group: str, limit: int | None, paused: bool) -> None:
        if self.main.group_rate:
            limit = None
        self.main.group_settings.update_or_create(
            group_key=group, defaults={"limit": limit, "paused": paused}
        )
        self.exceptions[group] = limit, paused
        self.loosen()

    @rule(group=named)
    def remove_exception(self, group: str) -> None:
        self.main.group_settings.filter(group_key=group).delete()
        self.exceptions.pop(group, None)
        self.loosen()

    @precondition(lambda self: self.main.limit)
    @rule(limit=st.sampled_from([1, 2, 4]))
    def set_limit_of_the_queue(self, limit: int) -> None:
        self.change(limit=limit)

    @precondition(lambda self: self.live)
    @rule(number=picks)
    def time_passes(self, number: int) -> None:
        """A lease or a delay expires."""
        delayed = [pk for pk in sorted(self.live) if not self.live[pk].due]
        if delayed:
            self.expire([delayed[number % len(delayed)]])

    def expire(self, ids: Iterable[int]) -> None:
        for table in ("pgqueue_deferred", "pgqueue_waiting"):
            run_sql(
                f"UPDATE {table} SET vt = statement_timestamp() - interval '1 second'"
                " WHERE id = ANY(%s) AND vt IS NOT NULL",
                [list(ids)],
            )
        # A batch lease expires as a whole.
        together = run_sql(
            "UPDATE pgqueue_lease SET vt = statement_timestamp() - interval '1 second'"
            " WHERE queue_id = %s AND ids && %s::bigint[] RETURNING ids",
            [self.main.pk, list(ids)],
        )
        for pk in {*ids, *(pk for (lease,) in together for pk in lease)}:
            if pk in self.live:
                self.live[pk].due = True

    @precondition(lambda self: self.main.group_rate)
    @rule(hours=st.integers(1, 4))
    def hours_pass(self, hours: int) -> None:
        self.hours += hours
        self.pass_hours(hours)

    def pass_hours(self, hours: int) -> None:
        """Move the times of slots, and the heads that wait for them, into the past."""
        run_sql(
            "UPDATE pgqueue_deferred d SET vt = d.vt - %s * interval '1 hour' FROM pgqueue_group g"
            " WHERE g.queue_id = %s AND g.head = d.id AND g.free_at = d.vt",
            [hours, self.main.pk],
        )
        run_sql(
            "UPDATE pgqueue_group SET free_at = free_at - %s * interval '1 hour'"
            " WHERE queue_id = %s",
            [hours, self.main.pk],
        )

    # In the end, and after each step

    def drain(self) -> None:
        """Without pauses, every message is delivered or dead-lettered."""
        for group in list(self.exceptions):
            self.remove_exception(group)
        for _ in range(400):
            self.pass_hours(100)
            self.expire([pk for pk, entry in self.live.items() if not entry.due])
            found = self.queue.read(qty=3)
            self.note_dead_letters()
            for message in found:
                del self.live[message.id]
            self.queue.archive(found)
            if not self.live:
                break
        assert not self.live, "stranded"
        self.queue.read()
        assert run_sql(
            "SELECT (SELECT count(*) FROM pgqueue_waiting WHERE queue_id = %(q)s)"
            " + (SELECT count(*) FROM pgqueue_recheck WHERE queue_id = %(q)s)"
            " + (SELECT count(*) FROM pgqueue_group WHERE queue_id = %(q)s AND group_key <> ''"
            "    AND free_at IS NULL)",
            {"q": self.main.pk},
        ) == [(0,)]

    @invariant()
    def every_message_is_there_once_with_its_counts(self) -> None:
        rows = run_sql(
            "SELECT id, 0, 0, NULL, group_key FROM pgqueue_ready WHERE queue_id = %(q)s"
            " UNION ALL SELECT id, read_ct, attempts, error, group_key FROM pgqueue_deferred"
            " WHERE queue_id = %(q)s"
            " UNION ALL SELECT unnest(ids), 1, 0, NULL, NULL FROM pgqueue_lease"
            " WHERE queue_id = %(q)s"
            " UNION ALL SELECT id, read_ct, attempts, error, group_key FROM pgqueue_waiting"
            " WHERE queue_id = %(q)s ORDER BY id",
            {"q": self.main.pk},
        )
        assert rows == [
            (e.id, e.read_ct, e.attempts, e.error, e.group)
            for e in (self.live[pk] for pk in sorted(self.live))
        ]

    @invariant()
    def metrics_agree(self) -> None:
        metrics = self.queue.metrics()
        assert (metrics.length, metrics.exact) == (len(self.live), True)
        if not self.main.group_rate:
            assert metrics.in_flight == self.in_flight()


def test_any_operations_and_changes_of_limits_in_any_order_keep_them(committed):
    run_state_machine_as_test(
        seeded(int(SEED))(LimitMachine) if SEED else LimitMachine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            derandomize=False,
            print_blob=True,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )
