"""Random operations on a queue and on a plain Python model of it.

After each step every message must be where the model says, and nowhere else. The model knows the
promises. Where they leave a choice (such as which of several due messages comes first), it checks
that the queue's choice was allowed, and adopts it. `tests/README.md` says how to run it longer, and
how to repeat a failure.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
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

from django_pgqueue.engine.read import reading
from django_pgqueue.models import BoundQueue, Message
from django_pgqueue.types import Receipt
from tests.conftest import run_sql

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]

EXAMPLES = int(os.environ.get("MODEL_EXAMPLES", "45"))
STEPS = int(os.environ.get("MODEL_STEPS", "40"))
SEED = os.environ.get("MODEL_SEED")

# No lease or delay expires by itself during a test: only a rule lets time pass.
LONG = 36_000
MAX_DELIVERIES = 3

queues = st.sampled_from(["main", "main", "dead"])
groups = st.sampled_from([None, "a", "a", "b"])
priorities = st.sampled_from([0, 0, 0, 7, -7])
quantities = st.integers(1, 5)
#: Whether the message expires: never, once a rule says so, or before it is read.
expiries = st.sampled_from([None, None, None, "later", "now"])
keys = st.sampled_from([None, None, None, "k", "l"])
untils = st.sampled_from([None, "started", "done"])
conflicts = st.sampled_from(["skip", "skip", "replace", "delay"])
OUTCOMES = {"replace": "replaced", "delay": "delayed"}
picks = st.integers(0, 999)
some = st.lists(picks, min_size=1, max_size=3)


@dataclass
class Entry:
    """A live message, as the model sees it."""

    id: int
    queue: str
    body: Any
    priority: int
    group: str | None
    #: ready, deferred, or waiting (for the head of its group, or to become the head at a read).
    place: str
    #: Whether it is neither leased nor delayed, or no longer.
    due: bool = True
    leased: bool = False
    read_ct: int = 0
    #: The time of the last delivery.
    read_at: int = 0
    attempts: int = 0
    #: Whether it was ever delivered in this queue.
    delivered: bool = False
    #: Whether it can expire, and whether it has expired.
    expires: bool = False
    expired: bool = False
    #: Its order among ready messages of its priority: its id and 0, or for a head the highest id
    #: when it became the head and the number of that step.
    turn: tuple[int, int] = (0, 0)
    #: The queue in which it was dead-lettered, if any.
    source: str | None = None
    #: Its unique key, and until when it holds it. A message that was moved has none.
    claim: tuple[str, str] | None = None

    def copy_to(self, queue: str) -> Entry:
        """A copy as it arrives in another queue: its delivery count restarts, and it does not
        expire any more."""
        return Entry(self.id, queue, self.body, self.priority, self.group, place="", source="main")

    @property
    def line(self) -> tuple[str, str | None]:
        return self.queue, self.group

    @property
    def rank(self) -> tuple[int, int]:
        return -self.priority, self.id

    @property
    def exhausted(self) -> bool:
        return self.queue == "main" and self.read_ct >= MAX_DELIVERIES

    @property
    def is_over(self) -> bool:
        """Whether no read will deliver it: it has expired, and is not in flight."""
        return self.expired and (self.due or not self.leased)

    @property
    def may_be_replaced(self) -> bool:
        return self.place != "deferred" or not self.leased

    @property
    def state(self) -> str:
        if self.leased:
            return "PROCESSING"
        if self.read_ct > 0:
            return "RETRYABLE"
        return "PENDING" if self.place == "ready" else "SCHEDULED"


@dataclass
class Line:
    """The head of a FIFO group, and the followers leased with it in one batch."""

    head: int
    batch: set[int] = field(default_factory=set)


class Model:
    def __init__(self) -> None:
        self.live: dict[int, Entry] = {}
        self.archive: dict[int, tuple[str, str]] = {}
        self.gone: set[int] = set()
        self.lines: dict[tuple[str, str | None], Line] = {}
        #: The last message with each key of a queue, and until when it holds it.
        self.claims: dict[tuple[str, str], tuple[int, str]] = {}
        self.newest = 0
        self.step = 1

    def within(self, queue: str, place: str | None = None) -> list[Entry]:
        return [
            e
            for e in self.live.values()
            if e.queue == queue and (place is None or e.place == place)
        ]

    def waiting(self, line: tuple[str, str | None]) -> list[Entry]:
        """The waiting messages of a group, the next one first."""
        return sorted(
            (e for e in self.live.values() if e.line == line and e.place == "waiting"),
            key=lambda e: e.id,
        )

    def still_out(self, line: tuple[str, str | None]) -> list[int]:
        """Followers that were leased in one batch with the head, and have not been put back."""
        return sorted(
            pk
            for pk in self.lines[line].batch
            if pk in self.live
            and self.live[pk].line == line
            and self.live[pk].place == "deferred"
            and pk != self.lines[line].head
        )

    def holder(self, queue: str, receipt: Receipt) -> Entry | None:
        """The message for which a receipt is valid.

        A follower's receipt is valid for as long as its head's.
        """
        entry = self.live.get(receipt.id)
        if entry is None or (entry.queue, entry.place) != (queue, "deferred"):
            return None
        if (entry.read_ct, entry.read_at) != receipt[1:]:
            return None
        if not self.is_first(entry):
            head = self.live[self.lines[entry.line].head]
            if head.place != "deferred" or head.read_at != entry.read_at:
                return None
        return entry

    def follows_one_of(self, receipt: Receipt, leaving: Iterable[Entry]) -> bool:
        """Whether a follower's receipt is valid again once its head has left.

        The head was delivered again, alone, or the follower's lease ran out; nobody else got the
        follower since.
        """
        entry = self.live.get(receipt.id)
        line = None if entry is None else self.lines.get(entry.line)
        if entry is None or line is None or self.live[line.head] not in leaving:
            return False
        if (entry.read_ct, entry.read_at) != receipt[1:]:
            return False
        out, behind = self.still_out(entry.line), self.waiting(entry.line)
        following = min([*out[:1], *(each.id for each in behind[:1])])
        return entry.id == following or (
            entry.place == "deferred" and self.live[following].read_at == entry.read_at
        )

    def holds(self, queue: str, key: str) -> bool:
        """Whether a message holds a key."""
        pk, kind = self.claims.get((queue, key), (0, "done"))
        entry = self.live.get(pk)
        is_there = entry is not None and entry.queue == queue
        return kind == "window" or bool(
            is_there and entry and not entry.is_over and (kind == "done" or not entry.delivered)
        )

    def keep(self, entry: Entry, state: str) -> None:
        """Archive an entry."""
        self.archive[entry.id] = entry.queue, state

    def arrive(self, entry: Entry) -> None:
        if entry.group is not None:
            entry.place = "waiting"
        else:
            entry.place = "ready" if entry.due else "deferred"
            entry.turn = entry.id, 0
        self.live[entry.id] = entry
        self.newest = max(self.newest, entry.id)

    def leave(self, entries: Iterable[Entry]) -> None:
        """Remove messages together; each removed head is followed by the next of its group."""
        leaving = list(entries)
        for entry in leaving:
            del self.live[entry.id]
        for entry in leaving:
            line = self.lines.get(entry.line)
            if line is not None and line.head == entry.id:
                self.succeed(entry.line)

    def succeed(self, name: tuple[str, str | None]) -> None:
        out, behind = self.still_out(name), self.waiting(name)
        if out and not (behind and behind[0].id < out[0]):
            self.lines[name].head = out[0]
        elif behind:
            self.raise_head(behind[0], set(out))
        else:
            del self.lines[name]

    def raise_head(self, entry: Entry, batch: Iterable[int] = ()) -> None:
        self.lines[entry.line] = Line(entry.id, set(batch))
        entry.place = "ready" if entry.due and entry.read_ct == 0 else "deferred"
        entry.turn = self.newest, self.step

    def begin_groups(self, queue: str) -> None:
        """The first step of a read: give every group without a head one."""
        for group in sorted({e.group for e in self.within(queue, "waiting") if e.group}):
            if (queue, group) not in self.lines:
                self.raise_head(self.waiting((queue, group))[0])

    def is_first(self, entry: Entry) -> bool:
        """Whether a message has no group, or is the head of its group."""
        if entry.group is None:
            return True
        line = self.lines.get(entry.line)
        return line is not None and line.head == entry.id

    def found_first(self, queue: str) -> list[Entry]:
        """The messages that a read delivers, or archives because they have expired."""
        return [
            e
            for e in self.within(queue)
            if e.place != "waiting" and e.due and self.is_first(e) and not e.exhausted
        ]

    def readable(self, queue: str) -> list[Entry]:
        return [e for e in self.found_first(queue) if not e.expired]

    def open_behind(self, head: Entry) -> list[Entry]:
        """The messages behind a head that a grouped read may lease, in order."""
        if self.still_out(head.line):
            return []
        found = []
        for entry in self.waiting(head.line):
            if not entry.due or entry.exhausted:
                break
            found.append(entry)
        return found

    def lease(self, entry: Entry, receipt: Receipt) -> None:
        entry.place, entry.due, entry.leased = "deferred", False, True
        entry.delivered = True
        entry.read_ct += 1
        entry.read_at = receipt.read_at

    def die(self, entries: list[Entry]) -> None:
        """Dead-letter messages with their ids, or archive them as FAILED without such a queue."""
        self.leave(entries)
        for entry in entries:
            if entry.queue == "main":
                self.arrive(entry.copy_to("dead"))
            else:
                self.keep(entry, "FAILED")


def _expires(expiry: str | None) -> Any:
    """The argument ``expires`` of a send."""
    return {None: None, "later": LONG, "now": 1e-6}[expiry]


def _expiry(expiry: str | None) -> dict[str, bool]:
    """What the model knows of it."""
    return {"expires": expiry is not None, "expired": expiry == "now"}


def _moment(receipt: Receipt) -> int:
    return receipt.read_at


class QueueMachine(RuleBasedStateMachine):
    """Each rule does the same to the queue and to the model, and compares the results."""

    number = 0

    @initialize()
    def start(self) -> None:
        QueueMachine.number += 1
        self.names = {
            "main": f"model-{os.getpid()}-{self.number}",
            "dead": f"model-{os.getpid()}-{self.number}-dead",
        }
        dead = Message.objects.create_queue(self.names["dead"], visibility_timeout=LONG)
        main = Message.objects.create_queue(
            self.names["main"],
            visibility_timeout=LONG,
            dead_letter_queue=dead,
            max_deliveries=MAX_DELIVERIES,
        )
        self.ids = {main.pk: "main", dead.pk: "dead"}
        self.model = Model()
        self.receipts: list[tuple[str, Receipt]] = []
        self.sent = 0

    def teardown(self) -> None:
        if hasattr(self, "names"):
            Message.objects.drop_queue(self.names["main"])
            Message.objects.drop_queue(self.names["dead"])

    # Sending

    def claim(self, queue: str, key: str, sent: Any, kind: str, on_conflict: str) -> None:
        """Check what a send with a key did, and do the same to the model."""
        pk, held_by = self.model.claims.get((queue, key), (0, ""))
        entry, expected = self.model.live.get(pk), None
        if self.model.holds(queue, key):
            replaces = on_conflict != "skip" and entry is not None and entry.queue == queue
            if replaces and entry is not None and entry.may_be_replaced:
                expected = OUTCOMES[on_conflict]
                self.model.leave([entry])
                self.model.keep(entry, "REPLACED")
            elif on_conflict == "skip" or held_by != "started":
                expected = "skipped"
        assert sent.conflict == expected
        if expected == "skipped":
            assert sent == pk, "the id of the message that holds the key"
        else:
            self.model.claims[queue, key] = int(sent), kind

    def expect_sent(
        self,
        queue: str,
        sent: list[Any],
        each: list[tuple[Any, str | None, str | None]],
        until: str | None,
        on_conflict: str,
        **facts: Any,
    ) -> None:
        """Check the results for messages of a body, a group and a key each."""
        kind = until or ("window" if on_conflict == "skip" else "started")
        keys = [key for _, _, key in each]
        for key in sorted({key for key in keys if key is not None}):
            places = [place for place, other in enumerate(keys) if other == key]
            chosen = places.pop(0 if on_conflict == "skip" else -1)
            self.claim(queue, key, sent[chosen], kind, on_conflict)
            assert {(sent[place], sent[place].conflict) for place in places} <= {
                (sent[chosen], "skipped")
            }
        for pk, (body, group, key) in zip(sent, each, strict=True):
            if getattr(pk, "conflict", None) == "skipped":
                continue
            known = [*self.model.live, *self.model.archive, *self.model.gone]
            assert pk > max(known, default=0)
            claim = None if key is None else (key, kind)
            entry = Entry(int(pk), queue, body, group=group, place="", claim=claim, **facts)
            self.model.arrive(entry)

    @rule(
        queue=queues,
        group=groups,
        priority=priorities,
        key=keys,
        later=st.booleans(),
        expiry=expiries,
        until=untils,
        on_conflict=conflicts,
    )
    def send(
        self,
        queue: str,
        group: str | None,
        priority: int,
        key: str | None,
        later: bool,
        expiry: str | None,
        until: Any,
        on_conflict: Any,
    ) -> None:
        self.sent += 1
        later |= on_conflict == "delay" and key is not None
        options = {} if key is None else {"until": until, "on_conflict": on_conflict}
        pk = Message.objects.send(
            self.names[queue],
            self.sent,
            delay=LONG if later else 0,
            expires=_expires(expiry),
            priority=priority,
            group=group,
            unique=key,
            **options,
        )
        each = [(self.sent, group, key)]
        facts = {"due": not later, "priority": priority, **_expiry(expiry)}
        self.expect_sent(queue, [pk], each, until, on_conflict, **facts)

    @rule(
        queue=queues,
        each=st.lists(st.tuples(groups, keys), min_size=1, max_size=6),
        priority=priorities,
        later=st.sampled_from([False, False, True]),
        expiry=expiries,
        until=untils,
        on_conflict=conflicts,
    )
    def send_batch(
        self,
        queue: str,
        each: list[tuple[str | None, str | None]],
        priority: int,
        later: bool,
        expiry: str | None,
        until: Any,
        on_conflict: Any,
    ) -> None:
        bodies = [self.sent + place for place in range(1, len(each) + 1)]
        self.sent += len(each)
        later |= on_conflict == "delay"
        pks = Message.objects.send_batch(
            self.names[queue],
            bodies,
            delay=LONG if later else 0,
            expires=_expires(expiry),
            priority=priority,
            group=[group for group, _ in each],
            unique=[key for _, key in each],
            until=until,
            on_conflict=on_conflict,
        )
        sent = [(body, group, key) for body, (group, key) in zip(bodies, each, strict=True)]
        facts = {"due": not later, "priority": priority, **_expiry(expiry)}
        self.expect_sent(queue, pks, sent, until, on_conflict, **facts)

    @rule()
    def keys_are_swept(self) -> None:
        """All windows expire, and maintenance deletes the keys that no message holds."""
        run_sql(
            "UPDATE pgqueue_claim SET until = statement_timestamp() WHERE queue_id = ANY(%s)",
            [list(self.ids)],
        )
        for name in self.names.values():
            BoundQueue(name).maintain()
        windows = [at for at, (_, kind) in self.model.claims.items() if kind == "window"]
        for at in windows:
            del self.model.claims[at]
        for at in [at for at in self.model.claims if not self.model.holds(*at)]:
            del self.model.claims[at]

    # Reading

    def rows(self) -> dict[int, dict[str, Any]]:
        """Every live message's row, read from the tables."""
        columns = [
            "id",
            "place",
            "queue",
            "due",
            "vt",
            "state",
            "read_ct",
            "attempts",
            "priority",
            "group_key",
        ]
        rows = run_sql(
            "SELECT id, 'ready', queue_id, true, NULL, 'PENDING', 0, 0, priority, group_key"
            " FROM pgqueue_ready WHERE queue_id = ANY(%(ids)s)"
            " UNION ALL SELECT id, 'deferred', queue_id, vt <= statement_timestamp(), vt, state,"
            " read_ct, attempts, priority, group_key"
            " FROM pgqueue_deferred WHERE queue_id = ANY(%(ids)s)"
            " UNION ALL SELECT unnest(ids), 'deferred', queue_id, vt <= statement_timestamp(), vt,"
            " 'PROCESSING', 1, 0, priority, NULL FROM pgqueue_lease WHERE queue_id = ANY(%(ids)s)"
            " UNION ALL SELECT id, 'waiting', queue_id,"
            " coalesce(vt <= statement_timestamp(), true), vt, NULL, read_ct, attempts, priority,"
            " group_key FROM pgqueue_waiting WHERE queue_id = ANY(%(ids)s)",
            {"ids": list(self.ids)},
        )
        found = {row[0]: dict(zip(columns, row, strict=True)) for row in rows}
        assert len(found) == len(rows), f"a message is in two places: {sorted(rows)}"
        return found

    def expect_put_right(self, queue: str) -> bool:
        """Check a read's side effects: overdue followers put back, expired messages archived, and
        dead letters moved. Returns whether any had expired."""
        rows = self.rows()
        for entry in self.model.within(queue, "deferred"):
            row = rows.get(entry.id)
            if row is None or self.ids[row["queue"]] != queue:
                continue
            # Put back; or put back and then made the next head, or leased behind the head.
            again = entry.leased and row["state"] == "RETRYABLE"
            leased = row["read_ct"] > entry.read_ct and not self.model.is_first(entry)
            if row["place"] in ("waiting", "ready") or again or leased:
                assert entry.due, "only what is due is set back in line"
                assert not self.model.is_first(entry), "and no head"
                entry.place, entry.leased = "waiting", False
        ended = run_sql(
            "SELECT id FROM pgqueue_archive WHERE id = ANY(%s) AND state = 'EXPIRED' ORDER BY id",
            [list(self.model.live)],
        )
        for (pk,) in ended:
            entry = self.model.live[pk]
            assert entry.expired, "archived as expired, but it has not expired"
            assert entry.due, "archived while it was in flight or delayed"
            assert entry.queue == queue, "archived by a read of another queue"
            self.model.leave([entry])
            self.model.keep(entry, "EXPIRED")
        dead = [
            entry
            for entry in self.model.within(queue)
            if entry.id in rows and self.ids[rows[entry.id]["queue"]] != queue
        ]
        while dead:
            # A follower becomes the head when its predecessor is removed.
            first = next((e for e in dead if self.model.is_first(e)), None)
            assert first is not None, f"not the head of its group, and dead-lettered: {dead}"
            assert first.exhausted, "dead-lettered before its deliveries ran out"
            assert first.due, "dead-lettered while it was in flight"
            dead.remove(first)
            self.model.die([first])
        return bool(ended)

    def expect_order(self, messages: list[Message]) -> None:
        """In a group, no message is delivered before all earlier ones are done.

        Redriven messages are exempt: they may wait behind a head with a higher id.
        """
        together = {message.id for message in messages}
        for message in messages:
            mine = self.model.live[message.id]
            for other in self.model.live.values():
                if other.id >= mine.id or other.group is None or other.line != mine.line:
                    continue
                assert other.id in together or other.source or mine.source, (
                    f"{mine} was given out before {other}"
                )

    def expect_delivery(self, message: Message, entry: Entry) -> None:
        assert not entry.expired, "delivered too late"
        assert (message.body, message.priority, message.group) == (
            entry.body,
            entry.priority,
            entry.group,
        )

    def expect_first_in_line(
        self, taken: list[Entry], before: list[Entry], rows: dict[int, dict[str, Any]]
    ) -> None:
        """Due messages were delivered before ready ones, each in their order.

        ``before`` are the messages readable when the read began. Messages that became readable
        during the read, behind a dead-lettered head, may come at any position.
        """
        chosen = {entry.id for entry in taken}
        left = [entry for entry in before if entry.id not in chosen]
        fresh = [e for e in taken if e.place == "ready" and e in before]
        due = [e for e in taken if e.place == "deferred" and e in before]
        left_due = [e for e in left if e.place == "deferred"]
        assert not (fresh and left_due), "fresh ones were read though others were due"
        for mine in due:
            for other in left_due:
                assert rows[mine.id]["vt"] <= rows[other.id]["vt"], "the longest due comes first"
        for mine in fresh:
            for other in left:
                if other.place == "ready":
                    ranks = [(-e.priority, e.turn) for e in (mine, other)]
                    assert ranks[0] <= ranks[1], "by priority, then by turn"

    def before_read(self, queue: str) -> tuple[dict[int, dict[str, Any]], list[Entry]]:
        rows = self.rows()
        self.model.begin_groups(queue)
        return rows, self.model.readable(queue)

    @rule(queue=queues, qty=quantities)
    def read(self, queue: str, qty: int) -> None:
        rows, before = self.before_read(queue)

        messages = Message.objects.read(self.names[queue], qty=qty)

        self.expect_put_right(queue)
        self.expect_order(messages)
        readable = {entry.id: entry for entry in self.model.readable(queue)}
        assert len(messages) <= qty
        assert {message.id for message in messages} <= set(readable), "not to be given out now"
        taken = [readable[message.id] for message in messages]
        assert [e.id for e in taken] == [e.id for e in sorted(taken, key=lambda e: e.rank)]
        self.expect_first_in_line(taken, before, rows)
        assert len(messages) == min(qty, len(readable)), "there was more to read"
        if len(messages) < qty:
            assert self.model.found_first(queue) == list(readable.values()), "expired, and left"
        for message, entry in zip(messages, taken, strict=True):
            self.expect_delivery(message, entry)
            self.model.lease(entry, message.receipt)
            assert message.read_ct == entry.read_ct
            self.receipts.append((queue, message.receipt))

    @rule(
        queue=queues,
        qty=st.integers(1, 8),
        how=st.sampled_from(["read_grouped", "read_grouped_rr", "read_grouped_head"]),
    )
    def read_grouped(self, queue: str, qty: int, how: str) -> None:
        rows, before = self.before_read(queue)

        messages = getattr(BoundQueue(self.names[queue]).pgmq, how)(qty=qty)

        any_expired = self.expect_put_right(queue)
        self.expect_order(messages)
        readable = {entry.id: entry for entry in self.model.readable(queue)}
        assert len(messages) <= qty
        assert len({message.id for message in messages}) == len(messages)
        parts: dict[Any, list[Entry]] = {}
        for message in messages:
            entry = self.model.live[message.id]
            parts.setdefault(entry.group or entry.id, []).append(entry)
        heads = [part[0] for part in parts.values()]
        assert {head.id for head in heads} <= set(readable), "not to be given out now"
        self.expect_first_in_line(heads, before, rows)

        behind = {head.id: self.model.open_behind(head) for head in heads if head.group}
        for part in parts.values():
            followers = behind.get(part[0].id, [])[: len(part) - 1]
            assert part[1:] == followers, "in the order of the group, without a gap"
        open_in = [1 + len(behind.get(head.id, ())) for head in heads]
        lengths = [len(part) for part in parts.values()]
        order = [message.id for message in messages]
        if how == "read_grouped":
            assert order == [e.id for part in parts.values() for e in part], "group by group"
            for place, length in enumerate(lengths):
                # Messages that had expired count, too: there may be fewer followers than asked for.
                if length > 1 and not any_expired:
                    assert lengths[:place] == open_in[:place], "the first group's come first"
        else:
            rounds = [
                [part[number].id for part in parts.values() if len(part) > number]
                for number in range(max(lengths, default=0))
            ]
            assert order == [pk for each in rounds for pk in each], "in rounds"
            for length, possible in zip(lengths, open_in, strict=True) if not any_expired else ():
                assert length >= min(possible, max(lengths) - 1), "a round was left out"
        if how == "read_grouped_head":
            assert max(lengths, default=1) == 1
            assert len(messages) == min(qty, len(readable)), "there was more to read"
        elif len(messages) < qty and not any_expired:
            assert len(heads) == len(readable), "there was more to read"
            assert lengths == open_in, "there was more to read in a group"

        for part in parts.values():
            if len(part) > 1:
                self.model.lines[part[0].line].batch = {e.id for e in part[1:]}
        for message in messages:
            entry = self.model.live[message.id]
            self.expect_delivery(message, entry)
            self.model.lease(entry, message.receipt)
            assert message.read_ct == entry.read_ct
            self.receipts.append((queue, message.receipt))

    @rule(queue=queues, qty=st.integers(1, 3))
    def pop(self, queue: str, qty: int) -> None:
        rows, before = self.before_read(queue)

        messages = Message.objects.pop(self.names[queue], qty)

        self.expect_put_right(queue)
        popped = [self.model.live[message.id] for message in messages]
        assert len(messages) <= qty
        self.expect_first_in_line(popped, before, rows)
        for message, entry in zip(messages, popped, strict=True):
            self.expect_delivery(message, entry)
        # Each message is followed by the next of its group, which the same pop may take too.
        todo = list(popped)
        while todo:
            first = next((entry for entry in todo if entry in self.model.readable(queue)), None)
            assert first is not None, f"not to be given out now: {todo}"
            todo.remove(first)
            self.model.leave([first])
            self.model.gone.add(first.id)
        if len(messages) < qty:
            assert all(entry in popped for entry in before), "there was more to pop"

    # Settling by receipt

    def chosen(self, numbers: list[int]) -> tuple[str, list[Receipt]]:
        """Choose some receipts of one queue, including old ones."""
        queue = self.receipts[numbers[0] % len(self.receipts)][0]
        mine = [receipt for name, receipt in self.receipts if name == queue]
        return queue, list(dict.fromkeys(mine[-1 - number % len(mine)] for number in numbers))

    def held(
        self,
        queue: str,
        receipts: list[Receipt],
        done: Any,
        *,
        leased: bool = False,
    ) -> list[Entry]:
        """The messages for which the receipts are valid, after checking that the queue agrees.

        ``leased``: whether the message must still be leased.
        """
        newest = {receipt.id: receipt for receipt in sorted(receipts, key=_moment)}.values()
        holders = [(receipt, self.model.holder(queue, receipt)) for receipt in newest]
        good = {r: e for r, e in holders if e is not None and (e.leased or not leased)}
        good |= {
            receipt: self.model.live[receipt.id]
            for receipt in set(newest) - set(good)
            if receipt.id in done and self.model.follows_one_of(receipt, good.values())
        }
        assert sorted(done) == sorted(receipt.id for receipt in good)
        assert sorted(done.lost) == sorted(set(receipts) - set(good))
        return list(good.values())

    @precondition(lambda self: self.receipts)
    @rule(numbers=some, how=st.sampled_from(["archive", "complete", "delete"]))
    def ack(self, numbers: list[int], how: str) -> None:
        queue, receipts = self.chosen(numbers)
        done = getattr(BoundQueue(self.names[queue]), how)(receipts)
        entries = self.held(queue, receipts, done)
        self.model.leave(entries)
        for entry in entries:
            if how == "delete":
                self.model.gone.add(entry.id)
            else:
                self.model.keep(entry, "COMPLETED")

    @precondition(lambda self: self.receipts)
    @rule(number=picks, later=st.booleans())
    def nack(self, number: int, later: bool) -> None:
        queue, [receipt] = self.chosen([number])
        done = BoundQueue(self.names[queue]).retry({receipt: LONG if later else 0})
        for entry in self.held(queue, [receipt], done, leased=True):
            entry.due, entry.leased = not later, False
            entry.attempts += 1

    @precondition(lambda self: self.receipts)
    @rule(number=picks)
    def release(self, number: int) -> None:
        queue, [receipt] = self.chosen([number])
        done = BoundQueue(self.names[queue]).release([receipt])
        for entry in self.held(queue, [receipt], done, leased=True):
            entry.due, entry.leased = True, False
            entry.read_ct -= 1

    @precondition(lambda self: self.receipts)
    @rule(number=picks, later=st.booleans())
    def extend(self, number: int, later: bool) -> None:
        queue, [receipt] = self.chosen([number])
        done = Message.objects.set_vt(self.names[queue], receipt, LONG if later else 0)
        for entry in self.held(queue, [receipt], done):
            entry.due = not later

    @precondition(lambda self: self.receipts)
    @rule(numbers=some)
    def fail(self, numbers: list[int]) -> None:
        queue, receipts = self.chosen(numbers)
        done = BoundQueue(self.names[queue]).fail(dict.fromkeys(receipts, "as told"))
        self.model.die(self.held(queue, receipts, done))

    # In any state

    @precondition(lambda self: self.model.live)
    @rule(number=picks)
    def time_passes(self, number: int) -> None:
        """A lease or a delay expires."""
        delayed = sorted(pk for pk, entry in self.model.live.items() if not entry.due)
        if not delayed:
            return
        pk = delayed[number % len(delayed)]
        # Not before the last read, which saw that it was not due.
        past = "statement_timestamp() - %s * interval '1 microsecond'"
        for table in ("pgqueue_deferred", "pgqueue_waiting"):
            run_sql(
                f"UPDATE {table} SET vt = {past} WHERE id = %s AND vt IS NOT NULL", [number, pk]
            )
        together = run_sql(
            f"UPDATE pgqueue_lease SET vt = {past} WHERE %s = ANY(ids) RETURNING ids", [number, pk]
        )
        for each in together[0][0] if together else [pk]:
            self.model.live[each].due = True

    @precondition(lambda self: any(e.expires for e in self.model.live.values()))
    @rule(number=picks)
    def expire(self, number: int) -> None:
        """The time until which a message may be delivered is over, wherever the message is."""
        known = sorted(pk for pk, entry in self.model.live.items() if entry.expires)
        pk = known[number % len(known)]
        run_sql("UPDATE pgqueue_message SET expires_at = statement_timestamp() WHERE id = %s", [pk])
        self.model.live[pk].expired = True

    @precondition(lambda self: self.model.live)
    @rule(
        numbers=some,
        queue=queues,
        how=st.sampled_from(["archive", "delete", "later", "now"]),
    )
    def operate(self, numbers: list[int], queue: str, how: str) -> None:
        """An operator removes messages by id, or changes when they are due."""
        known = sorted(self.model.live)
        ids = list(dict.fromkeys(known[number % len(known)] for number in numbers))
        if how in ("archive", "delete"):
            done = getattr(Message.objects, how)(self.names[queue], ids)
        else:
            done = Message.objects.set_vt(self.names[queue], ids, LONG if how == "later" else 0)
        entries = [self.model.live[pk] for pk in ids if self.model.live[pk].queue == queue]
        assert sorted(done) == sorted(entry.id for entry in entries)
        assert sorted(done.lost) == sorted(set(ids) - set(done))
        if how in ("archive", "delete"):
            self.model.leave(entries)
        for entry in entries:
            if how == "archive":
                self.model.keep(entry, "COMPLETED")
            elif how == "delete":
                self.model.gone.add(entry.id)
            else:
                entry.due = how == "now"
                if entry.place == "ready":
                    entry.place = "deferred"

    @rule()
    def redrive(self) -> None:
        back = [
            entry
            for entry in self.model.within("dead")
            if entry.source == "main" and not (entry.leased and not entry.due)
        ]
        assert BoundQueue(self.names["dead"]).redrive() == len(back)
        self.model.leave(back)
        for entry in back:
            self.model.arrive(entry.copy_to("main"))

    @rule(queue=queues, sure=st.integers(0, 3))
    def purge(self, queue: str, sure: int) -> None:
        if sure:  # rarely, since an empty queue tests little
            return
        entries = self.model.within(queue)
        assert Message.objects.purge(self.names[queue]) == len(entries)
        self.model.leave(entries)
        self.model.gone.update(entry.id for entry in entries)

    # After each step

    @invariant()
    def everything_is_in_its_place_and_nowhere_else(self) -> None:
        self.model.step += 1
        rows = self.rows()
        found = {
            pk: (
                self.ids[row["queue"]],
                row["place"],
                row["due"],
                row["state"],
                row["read_ct"],
                row["attempts"],
                row["priority"],
                row["group_key"],
            )
            for pk, row in rows.items()
        }
        expected = {
            e.id: (
                e.queue,
                e.place,
                e.due,
                None if e.place == "waiting" else e.state,
                e.read_ct,
                e.attempts,
                e.priority,
                e.group,
            )
            for e in self.model.live.values()
        }
        assert found == expected
        archived = run_sql(
            "SELECT id, queue_id, state FROM pgqueue_archive WHERE queue_id = ANY(%s)",
            [list(self.ids)],
        )
        assert len(archived) == len({row[0] for row in archived})
        assert {pk: (self.ids[q], state) for pk, q, state in archived} == self.model.archive
        bodies = run_sql(
            "SELECT id, queue_id FROM pgqueue_message WHERE queue_id = ANY(%s) ORDER BY id",
            [list(self.ids)],
        )
        held = {**{e.id: e.queue for e in self.model.live.values()}}
        held |= {pk: queue for pk, (queue, _) in self.model.archive.items()}
        assert [(pk, self.ids[q]) for pk, q in bodies] == sorted(held.items())
        assert not self.model.gone & set(held)

    @invariant()
    def no_two_messages_hold_one_key(self) -> None:
        holding = [
            (e.queue, e.claim[0])
            for e in self.model.live.values()
            if e.claim
            and not e.is_over
            and (e.claim[1] == "done" or (e.claim[1] == "started" and not e.delivered))
        ]
        assert len(holding) == len(set(holding))

    @invariant()
    def each_group_has_one_head_or_will_get_one(self) -> None:
        heads = run_sql(
            "SELECT queue_id, group_key, head FROM pgqueue_group WHERE queue_id = ANY(%s)",
            [list(self.ids)],
        )
        found = {(self.ids[queue], group): head for queue, group, head in heads}
        assert found == {name: line.head for name, line in self.model.lines.items()}
        outside: dict[tuple[str, str | None], list[int]] = {}
        for entry in self.model.live.values():
            if entry.group and entry.place != "waiting":
                outside.setdefault(entry.line, []).append(entry.id)
        for name, ids in outside.items():
            allowed = {self.model.lines[name].head, *self.model.lines[name].batch}
            assert set(ids) <= allowed, "two heads"
        rechecks = run_sql(
            "SELECT queue_id, group_key FROM pgqueue_recheck WHERE queue_id = ANY(%s)",
            [list(self.ids)],
        )
        asked = {(self.ids[queue], group) for queue, group in rechecks}
        waiting = {e.line for e in self.model.live.values() if e.place == "waiting"}
        assert waiting - set(found) <= asked, "stranded: no read will look at it"

    @invariant()
    def metrics_agree(self) -> None:
        for queue, name in self.names.items():
            metrics = Message.objects.metrics(name)
            entries = self.model.within(queue)
            deferred = self.model.within(queue, "deferred")
            waiting = self.model.within(queue, "waiting")
            begun = {
                self.model.waiting(e.line)[0].id for e in waiting if e.line not in self.model.lines
            }
            begun_later = {pk for pk in begun if not self.model.live[pk].due}
            due = sum(e.due for e in deferred)
            ready = len(self.model.within(queue, "ready")) + len(begun - begun_later)
            assert metrics.exact
            assert (
                metrics.length,
                metrics.ready,
                metrics.in_flight,
                metrics.delayed,
                metrics.waiting,
                metrics.visible,
                metrics.archived,
            ) == (
                len(entries),
                ready,
                sum(not e.due and e.leased for e in deferred),
                sum(not e.due and not e.leased for e in deferred) + len(begun_later),
                len(waiting) - len(begun),
                ready + due,
                sum(where == queue for where, _ in self.model.archive.values()),
            )
            assert (metrics.oldest_age is None) == (not entries)


def run_machine(examples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = seeded(int(SEED))(QueueMachine) if SEED else QueueMachine
    # Lease what the machine reads at once as a batch.
    monkeypatch.setattr(reading, "BATCH_FROM", 2)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            derandomize=False,
            print_blob=True,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_any_operations_in_any_order_do_what_the_model_does(committed, monkeypatch):
    run_machine(EXAMPLES, monkeypatch)
