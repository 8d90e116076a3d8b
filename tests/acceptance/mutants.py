"""Plants bugs in a copy of the package, and shows which test catches each.

    python -m tests.acceptance.mutants                  # all
    python -m tests.acceptance.mutants --name no-fence  # some of them
    python -m tests.acceptance.mutants --list

A mutant is a substitution of text in a temporary copy; the package itself has no hooks. The tests
that should catch it run there. A catch counts if the catching test passes without the mutant.
Exits with 1 when a mutant survives.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from django_pgqueue.embedded.server import EmbeddedServer

__all__ = ["MUTANTS", "ROOT", "Change", "Laboratory", "Mutant", "Verdict", "laboratory", "table"]

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("django_pgqueue", "pyspark_pgqueue", "example_project", "tests", "pyproject.toml")
SECONDS = 60


class Change(NamedTuple):
    """A replacement of a text that occurs exactly once in a file."""

    path: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutant:
    name: str
    #: A description of the bug.
    bug: str
    #: Node ids of the tests that should catch it.
    tests: tuple[str, ...]
    changes: tuple[Change, ...]


class Verdict(NamedTuple):
    """``catcher`` is the first test that failed, or None for a survivor."""

    mutant: Mutant
    catcher: str | None
    seconds: float
    output: str
    timed_out: bool = False

    @property
    def text(self) -> str:
        if self.catcher:
            return f"`{self.catcher}`"
        return "**survived**: the run took too long" if self.timed_out else "**survived**"


@dataclass
class Laboratory:
    """A copy of the project, and a server for its tests."""

    root: Path
    url: str
    _clean: dict[str, bool] = field(default_factory=dict)

    def examine(self, mutant: Mutant, seconds: float = SECONDS) -> Verdict:
        """Run the tests on a mutant, and restore the copy afterwards.

        Raises ValueError if a text does not occur exactly once in its file. Raises RuntimeError if
        the catcher fails without the mutant too, or if no test ran.
        """
        before = {change.path: (self.root / change.path).read_text() for change in mutant.changes}
        began = time.monotonic()
        try:
            for change in mutant.changes:
                path = self.root / change.path
                text = path.read_text()
                if (count := text.count(change.old)) != 1:
                    raise ValueError(
                        f"{mutant.name}: the text stands {count} times in {change.path}, not once: "
                        f"bring the mutant up to date. The text:\n{change.old}"
                    )
                path.write_text(text.replace(change.old, change.new))
            code, output = self._pytest(mutant.tests, seconds)
        finally:
            for name, text in before.items():
                (self.root / name).write_text(text)
        took = time.monotonic() - began
        if code == 0 or code is None:
            return Verdict(mutant, None, took, output, timed_out=code is None)
        found = re.search(r"^(?:FAILED|ERROR) (\S.*?)(?: - |$)", output, re.MULTILINE)
        if code != 1 or found is None:
            raise RuntimeError(f"{mutant.name}: pytest ended with {code}:\n{output}")
        catcher = found.group(1)
        if not self._passes(catcher):
            raise RuntimeError(f"{catcher} fails without {mutant.name} too")
        return Verdict(mutant, catcher, took, output)

    def _passes(self, test: str) -> bool:
        if test not in self._clean:
            self._clean[test] = self._pytest([test], 2 * SECONDS)[0] == 0
        return self._clean[test]

    def _pytest(self, tests: Iterable[str], seconds: float) -> tuple[int | None, str]:
        """Run pytest; returns its exit code, or None after a timeout, and its output."""
        options = ["-x", "-q", "-rfE", "--tb=short", "-p", "no:cacheprovider", "--create-db"]
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.root),
            "PYTHONDONTWRITEBYTECODE": "1",
            "DATABASE_URL": self.url,
            "COLUMNS": "400",
        }
        with (self.root / "output").open("w+") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *options, *tests],
                cwd=self.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code: int | None = process.wait(seconds)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            output.seek(0)
            return code, output.read()


@contextmanager
def laboratory() -> Iterator[Laboratory]:
    folder = Path(tempfile.mkdtemp(prefix="mutants-"))
    root = folder / "project"
    root.mkdir()
    ignore = shutil.ignore_patterns("__pycache__", ".pgdata*", "*.pyc")
    server = EmbeddedServer(folder / "pg", settings={"fsync": "off", "full_page_writes": "off"})
    try:
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, root / name, ignore=ignore)
            else:
                shutil.copy(ROOT / name, root / name)
        with server:
            yield Laboratory(root, server.url("queue"))
    finally:
        shutil.rmtree(server.home, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


ENGINE = "django_pgqueue/engine"
DDL = "django_pgqueue/ddl"
SETTLING = "tests/engine/settle/test_settling.py"
FENCES = "tests/engine/settle/test_fences.py"
BATCHES = "tests/engine/leases/test_batches.py"
GROUPED = "tests/engine/read/test_grouped.py"
OUTCOMES = "tests/worker/test_outcomes.py"
TRANSACTIONS = "tests/acceptance/test_transactions.py"
UNFLUSHED = "tests/acceptance/test_unflushed.py"
EXPIRING = "tests/engine/read/test_expiring.py"
ONCE = "tests/engine/send/test_once.py"
RACES = "tests/engine/send/test_once_races.py"
LIMITS = "tests/engine/read/test_limits.py"
LIMITS_RACES = "tests/engine/read/test_limits_races.py"
PROMISES = "tests/promises"
SUBSCRIPTIONS = "tests/subscriptions"
CURSOR = "django_pgqueue/engine/subscriptions"
FLOWS = "django_pgqueue/flows"
STEPS = "tests/flows/test_steps.py"
BESIDE = "tests/flows/test_interleavings.py"
WAITS_BESIDE = "tests/flows/test_waits_interleavings.py"
BATCH = "django_pgqueue/queues/batch.py"
BATCHES = "tests/batches/test_batches.py"
BATCHES_BESIDE = "tests/batches/test_interleavings.py"
LOST_ANSWERS = "tests/flows/test_lost_answers.py"
LATE_WORKERS = (
    f"{PROMISES}/test_kept.py::test_late_workers_and_cut_connections_store_no_second_value"
)

STORED_WITHOUT_FENCE = Change(
    f"{FLOWS}/store_step.sql", "WHERE {settle/fence} AND", "WHERE {settle/chosen} AND"
)
STORED_WITHOUT_LOCK = Change(f"{FLOWS}/store_step.sql", "'PROCESSING' FOR UPDATE", "'PROCESSING'")
STEPS_OF_ANY_QUEUE = Change(f"{FLOWS}/load_steps.sql", "s.queue_id = {queue_id} AND ", "")
STORED_AFTER_THE_COMMIT = Change(
    f"{FLOWS}/durable.py",
    "                    stored, is_first = durable.store(name, _called(name, function, args, "
    "kwargs))\n"
    "                    if not is_first:  # nor are these the first writes\n"
    "                        transaction.set_rollback(True, using=alias)\n"
    "                    return stored\n",
    "                    value = _called(name, function, args, kwargs)\n"
    "                return durable.store(name, value)[0]\n",
)
NOTED_WITHOUT_FENCE = Change(
    f"{FLOWS}/store_note.sql", "WHERE {settle/fence} AND", "WHERE {settle/chosen} AND"
)

MUTANTS = (
    Mutant(
        "no-fence",
        "settling ignores the receipt",
        (SETTLING,),
        (
            Change(
                f"{ENGINE}/settle/fence.sql",
                "((id, read_ct, last_read_at) IN (",
                "(true OR (id, read_ct, last_read_at) IN (",
            ),
        ),
    ),
    Mutant(
        "unflushed-ack",
        "an ack commits without waiting for the disk",
        (UNFLUSHED,),
        (
            Change(
                f"{ENGINE}/settle/archive.sql",
                "{settle/fence}",
                "{settle/fence} AND {leases/unflushed}",
            ),
        ),
    ),
    Mutant(
        "no-fence-of-batches",
        "a batch is archived by the id of its first message",
        (FENCES,),
        (
            Change(
                f"{ENGINE}/leases/whole.sql",
                "((head, read_at, ids::text) IN (",
                "(true OR (head, read_at, ids::text) IN (",
            ),
        ),
    ),
    Mutant(
        "no-fence-of-parts",
        "a part of a batch is archived by the id of its first message",
        (FENCES,),
        (
            Change(
                f"{ENGINE}/leases/archive_part.sql",
                "          AND read_at = timestamptz 'epoch' "
                "+ g.read_at::float8 * interval '1 microsecond'\n",
                "",
            ),
        ),
    ),
    Mutant(
        "fence-by-count",
        "a receipt is compared by read_ct, without the moment of its delivery",
        (FENCES,),
        (
            Change(
                f"{ENGINE}/settle/fence.sql",
                "((id, read_ct, last_read_at) IN (",
                "((id, read_ct) IN (",
            ),
            Change(
                f"{ENGINE}/settle/fence.sql",
                ",\n               timestamptz 'epoch' + unnest(%(read_ats)s::bigint[])::float8\n"
                "                                     * interval '1 microsecond')",
                ")",
            ),
        ),
    ),
    Mutant(
        "lease-lost-ignored",
        "a transactional handler commits although its lease is lost",
        (
            f"{OUTCOMES}::test_transactional_rolls_everything_back_when_the_lease_was_lost",
            f"{OUTCOMES}::test_transactional_batch_gives_the_others_back_when_one_lease_was_lost",
        ),
        (
            Change(
                "django_pgqueue/worker/execution.py",
                "if settled.lost:",
                "if settled.lost and False:",
            ),
        ),
    ),
    Mutant(
        "followers-ready",
        "a message of a group is readable as soon as it is sent",
        (GROUPED,),
        (
            Change(
                f"{DDL}/send.sql",
                "    WHERE group_key IS NULL\n      AND (scheduled_at IS NULL",
                "    WHERE (scheduled_at IS NULL",
            ),
        ),
    ),
    Mutant(
        "followers-before-their-head",
        "a follower whose lease ran out is leased while its head is not done",
        (GROUPED,),
        (
            Change(
                f"{ENGINE}/read/read.sql",
                "d.group_key IS NOT NULL AND {read/blocked} AS blocked",
                "false AND {read/blocked} AS blocked",
            ),
        ),
    ),
    Mutant(
        "followers-beside-a-batch",
        "a grouped read goes on behind followers that an earlier one holds",
        (GROUPED,),
        (
            Change(
                f"{ENGINE}/read/follow.sql",
                "               LIMIT 1) IS NULL\n",
                "               LIMIT 1) IS NOT NULL IS NOT NULL\n",
            ),
        ),
    ),
    Mutant(
        "group-order",
        "the last message of a group is the next head",
        (GROUPED,),
        (
            Change(
                f"{ENGINE}/groups/promote.sql",
                "ORDER BY w.id LIMIT 1) w ON true",
                "ORDER BY w.id DESC LIMIT 1) w ON true",
            ),
        ),
    ),
    Mutant(
        "group-order-after-acks",
        "an ack brings up the last message of the group",
        (GROUPED,),
        (
            Change(
                f"{DDL}/groups.sql",
                "ORDER BY w.id LIMIT 1) w ON true",
                "ORDER BY w.id DESC LIMIT 1) w ON true",
            ),
        ),
    ),
    Mutant(
        "group-turns",
        "the next head of a group is read before other groups",
        (GROUPED,),
        (
            Change(
                f"{DDL}/groups.sql",
                "{next_turn} AS turn",
                "w.id << 20 AS turn",
            ),
        ),
    ),
    Mutant(
        "group-locked-by-a-look",
        "a read in a transaction keeps groups locked to which it gives no head",
        ("tests/engine/read/test_grouped_in_transactions.py",),
        (
            Change(
                f"{DDL}/groups.sql",
                "RAISE SQLSTATE 'PQ001';\nEXCEPTION",
                "RETURN groups;\nEXCEPTION",
            ),
        ),
    ),
    Mutant(
        "group-without-recheck",
        "an ack that finds the next message locked leaves no recheck",
        (GROUPED,),
        (
            Change(
                f"{DDL}/groups.sql",
                "FROM {schema}.pgqueue_group g WHERE g.ctid = ANY(places);",
                "FROM {schema}.pgqueue_group g WHERE false;",
            ),
        ),
    ),
    Mutant(
        "partial-ack-drops",
        "an ack of a part of a batch loses the rest",
        (BATCHES,),
        (
            Change(
                f"{ENGINE}/leases/archive_part.sql",
                "WHERE m.id <> ALL(done)\n",
                "WHERE m.id <> ALL(done) AND false\n",
            ),
        ),
    ),
    Mutant(
        "unique-window-forgotten",
        "a send takes over a unique key whose window still counts",
        (ONCE,),
        (
            Change(
                f"{DDL}/claim_keys.sql",
                "RETURN claim.until > statement_timestamp();",
                "RETURN false;",
            ),
        ),
    ),
    Mutant(
        "unique-until-read",
        "a message holds its key until its first delivery only",
        (ONCE,),
        (
            Change(
                f"{DDL}/claim_keys.sql",
                "AND (claim.kind = 'done' OR d.first_read_at IS NULL)",
                "AND d.first_read_at IS NULL",
            ),
        ),
    ),
    Mutant(
        "unique-past-a-delivery",
        "a message holds its key after its first delivery",
        (ONCE,),
        (
            Change(
                f"{DDL}/claim_keys.sql",
                "(claim.kind = 'done' OR d.first_read_at IS NULL)",
                "true",
            ),
        ),
    ),
    Mutant(
        "unique-without-leases",
        "a batch lease holds no key",
        (ONCE,),
        (
            Change(
                f"{DDL}/claim_keys.sql",
                "claim.kind = 'done' AND EXISTS",
                "false AND EXISTS",
            ),
        ),
    ),
    Mutant(
        "unique-one-look",
        "the key is not looked at again once its row is locked",
        (RACES,),
        (
            Change(
                f"{DDL}/claim_keys.sql",
                "IF old.id IS NOT NULL THEN\n        -- After",
                "IF false THEN\n        -- After",
            ),
        ),
    ),
    Mutant(
        "unique-replaced-in-flight",
        "a send replaces a message in flight",
        (ONCE,),
        (
            Change(
                f"{DDL}/claim_keys.sql",
                " AND state <> 'PROCESSING'\n",
                "\n",
            ),
        ),
    ),
    Mutant(
        "unique-waits-for-readers",
        "a send that replaces waits for a reader",
        (RACES,),
        (
            Change(
                f"{DDL}/claim_keys.sql",
                "FOR UPDATE SKIP LOCKED))\n    RETURNING enqueued_at, NULL",
                "FOR UPDATE))\n    RETURNING enqueued_at, NULL",
            ),
        ),
    ),
    Mutant(
        "unique-done-doubled",
        "what runs until done gets a second message beside it",
        (ONCE,),
        (
            Change(
                f"{DDL}/claim_keys.sql",
                "ELSIF on_conflict = 'skip' OR old.kind <> 'started' THEN",
                "ELSIF on_conflict = 'skip' THEN",
            ),
        ),
    ),
    Mutant(
        "unique-never-at-last",
        "a debounced message of a group is replaced for ever",
        (ONCE,),
        (
            Change(
                f"{DDL}/claim_keys.sql",
                "OR (old.first_at + max_wait > statement_timestamp()) IS NOT FALSE)",
                "OR true)",
            ),
        ),
    ),
    Mutant(
        "unique-to-the-end",
        "a debounced message goes to the end of the queue for ever",
        (ONCE,),
        (
            Change(
                f"{DDL}/send.sql",
                "AND (unique_key IS NULL OR scheduled_at::timestamptz = statement_timestamp()));",
                ");",
            ),
            Change(
                f"{DDL}/send.sql",
                "OR unique_key IS NOT NULL AND scheduled_at::timestamptz < statement_timestamp()",
                "",
            ),
        ),
    ),
    Mutant(
        "unique-first-forgotten",
        "each replacement starts max_wait anew",
        (ONCE,),
        (
            Change(
                f"{DDL}/claim_keys.sql",
                "new.first_at := old.first_at;",
                "NULL;",
            ),
        ),
    ),
    Mutant(
        "unique-out-of-order",
        "a batch claims its keys in the order of its messages",
        (RACES,),
        (
            Change(
                f"{DDL}/claim_keys.sql",
                "ORDER BY unique_key\n        ON CONFLICT",
                "ORDER BY id\n        ON CONFLICT",
            ),
        ),
    ),
    Mutant(
        "no-read-from-the-start",
        "under an endless backlog nothing looks for messages that committed late",
        ("tests/engine/read/test_positions.py",),
        (
            Change(
                f"{ENGINE}/read/positions.py",
                "time.monotonic() - self._swept_at >= rest:",
                "time.monotonic() - self._swept_at >= float('inf') > rest:",
            ),
        ),
    ),
    Mutant(
        "attempt-counted-twice",
        "a retry whose answer was lost counts its attempt once more",
        (FENCES,),
        (Change(f"{ENGINE}/settle/retry.sql", "  AND state = 'PROCESSING'\n", ""),),
    ),
    Mutant(
        "release-keeps-the-count",
        "a message given back unstarted keeps its delivery",
        (FENCES,),
        (
            Change(
                f"{ENGINE}/settle/release.sql",
                "read_ct = greatest(read_ct - %(deliveries)s, 0),",
                "read_ct = read_ct,",
            ),
        ),
    ),
    Mutant(
        "partition-with-live-message-dropped",
        "maintenance drops a partition in which a message lives",
        ("tests/maintenance/test_retention.py",),
        (
            Change(
                "django_pgqueue/maintenance/retention.py",
                "    return bool(found)\n",
                "    return bool(found) and False\n",
            ),
        ),
    ),
    Mutant(
        "send-outside-the-transaction",
        "a send commits by itself",
        (
            f"{TRANSACTIONS}::test_a_rollback_keeps_neither",
            f"{TRANSACTIONS}::test_a_rolled_back_send_is_never_seen",
        ),
        (
            Change(
                f"{ENGINE}/send/sending.py",
                '[(pk,)] = queue.runner.run(queue.text("send/send", **names), params)',
                'thread = __import__("concurrent.futures").futures.ThreadPoolExecutor(1)\n'
                '        [(pk,)] = thread.submit(queue.run, "send/send", params).result()',
            ),
        ),
    ),
    Mutant(
        "expired-delivered",
        "messages are archived as expired until they expire, and delivered from then on",
        (EXPIRING,),
        (
            Change(
                f"{ENGINE}/places.sql",
                "expires_at::timestamptz <= statement_timestamp()",
                "expires_at::timestamptz > statement_timestamp()",
            ),
        ),
    ),
    *(
        Mutant(
            f"expired-delivered-by-{statement}",
            f"{statement}.sql delivers messages that have expired",
            (EXPIRING,),
            (
                Change(
                    f"{ENGINE}/read/{statement}.sql", "SELECT {read/note}, ", "SELECT NULL::text, "
                ),
            ),
        )
        for statement in ("read", "read_ready", "follow")
    ),
    Mutant(
        "expired-in-the-buffer",
        "a handler starts on a message that expired after it was fetched",
        ("tests/worker/test_expiring.py",),
        (
            Change(
                "django_pgqueue/worker/execution.py",
                "if message.start_until <= now]:",
                "if message.start_until <= now and False]:",
            ),
        ),
    ),
    Mutant(
        "expired-holds-its-key",
        "a send is skipped for a message that no read will deliver",
        (ONCE,),
        (Change(f"{DDL}/claim_keys.sql", "RETURN expired IS NOT TRUE OR", "RETURN true OR"),),
    ),
    Mutant(
        "expired-without-deliveries-left",
        "a message whose deliveries ran out is archived as expired",
        (EXPIRING,),
        (
            Change(
                f"{ENGINE}/settle/expire_next.sql",
                "WHERE d.read_ct < %(max_deliveries)s\n      AND (d.",
                "WHERE (d.",
            ),
        ),
    ),
    Mutant(
        "expired-though-leased",
        "a message that another reader has just leased is archived as expired",
        (EXPIRING,),
        (
            Change(
                f"{ENGINE}/settle/expire.sql",
                "{settle/fence}",
                "{settle/chosen}",
            ),
        ),
    ),
    Mutant(
        "slot-freed-twice",
        "the start of a head frees its slot, and so does its end",
        (LIMITS,),
        (
            Change(
                f"{DDL}/slots.sql",
                "OR state = 'PROCESSING' AND rule.by_start",
                "OR state = 'PROCESSING'",
            ),
        ),
    ),
    Mutant(
        "slot-never-freed",
        "the end of a head does not free its slot",
        (LIMITS,),
        (
            Change(
                f"{DDL}/slots.sql",
                "state IS NULL\n                   OR",
                "false\n                   OR",
            ),
        ),
    ),
    Mutant(
        "slot-freed-in-flight",
        "a head in flight does not take its slot",
        (LIMITS,),
        (
            Change(
                f"{DDL}/slots.sql",
                "state IS NOT NULL OR is_ready IS NOT NULL AS is_taken",
                "is_ready IS NOT NULL AS is_taken",
            ),
        ),
    ),
    Mutant(
        "slot-taken-for-good",
        "a slot stays taken when its head ends, in a group without a rate",
        (LIMITS,),
        (
            Change(
                f"{DDL}/slots.sql",
                "state IS NOT NULL OR is_ready IS NOT NULL AS is_taken",
                "true AS is_taken",
            ),
        ),
    ),
    Mutant(
        "one-slot-too-many",
        "a group has one slot more than its limit",
        (LIMITS,),
        (
            Change(
                f"{DDL}/slots.sql",
                "room := greatest(rule.slots - seen.taken, 0);",
                "room := greatest(rule.slots - seen.taken + 1, 0);",
            ),
        ),
    ),
    Mutant(
        "lowered-limit-ignored",
        "heads that have not started stay under a lowered limit",
        (LIMITS,),
        (
            Change(
                f"{DDL}/slots.sql",
                "IF late AND ahead = 0 THEN",
                "IF false THEN",
            ),
        ),
    ),
    Mutant(
        "spacing-forgotten",
        "a start does not delay the next one in its slot",
        (LIMITS,),
        (
            Change(
                f"{DDL}/slots.sql",
                "SET free_at = clock_timestamp() + rule.spacing\n",
                "SET free_at = NULL\n",
            ),
        ),
    ),
    Mutant(
        "spacing-cut-short",
        "the next start is as early as any earlier one allowed",
        (LIMITS,),
        (
            Change(
                f"{DDL}/slots.sql",
                "THEN greatest(s.free_at, s.last_read_at + rule.spacing)",
                "THEN least(s.free_at, s.last_read_at + rule.spacing)",
            ),
        ),
    ),
    Mutant(
        "old-rate-kept",
        "a raised rate does not shorten the wait",
        (LIMITS,),
        (
            Change(
                f"{DDL}/slots.sql",
                "CASE WHEN rule.spacing IS NOT NULL THEN least(",
                "CASE WHEN rule.spacing IS NOT NULL THEN greatest(",
            ),
        ),
    ),
    Mutant(
        "group-lock-skipped",
        "two transactions fill the slots of one group at once",
        (LIMITS_RACES,),
        (
            Change(
                f"{DDL}/slots.sql",
                "ORDER BY slot LIMIT 1))\n    FOR UPDATE SKIP LOCKED;",
                "ORDER BY slot LIMIT 1));",
            ),
            Change(
                f"{DDL}/slots.sql",
                "ORDER BY g.slot LIMIT 1))\n        FOR UPDATE SKIP LOCKED) l",
                "ORDER BY g.slot LIMIT 1))) l",
            ),
        ),
    ),
    Mutant(
        "slot-given-away-unlocked",
        "a slot is given away while a read starts its head",
        (f"{LIMITS_RACES}::test_a_slot_is_not_given_away_while_a_read_starts_its_head",),
        (
            Change(
                f"{DDL}/slots.sql",
                "(state IS NULL OR (slot = ANY(held)) IS TRUE) AS is_free",
                "true AS is_free",
            ),
        ),
    ),
    Mutant(
        "recheck-forgotten",
        "an ack forgets the group that another transaction has locked",
        (LIMITS_RACES,),
        (
            Change(
                f"{DDL}/slots.sql",
                "FROM unnest(queue_ids, groups) AS f (queue_id, group_key);",
                "FROM unnest(queue_ids, groups) AS f (queue_id, group_key) WHERE false;",
            ),
        ),
    ),
    Mutant(
        "limit-without-a-lock",
        "reads of a queue with a limit count at the same time",
        (
            f"{LIMITS_RACES}::test_a_read_waits_for_the_one_before_it_and_heeds_what_changed_meanwhile",
        ),
        (Change(f"{DDL}/whole_queue.sql", "AND g.slot = -1 FOR UPDATE;", "AND g.slot = -1;"),),
    ),
    Mutant(
        "limit-forgets-batch-leases",
        "a first limit does not count batch leases",
        (LIMITS_RACES,),
        (
            Change(
                f"{DDL}/whole_queue.sql",
                "coalesce(sum(cardinality(l.ids)), 0)",
                "coalesce(sum(0), 0)",
            ),
        ),
    ),
    Mutant(
        "limit-forgets-extended-leases",
        "an expired lease that is being extended does not count",
        (LIMITS_RACES,),
        (
            Change(
                f"{DDL}/whole_queue.sql",
                "FOR UPDATE SKIP LOCKED));\n        is_reused",
                "));\n        is_reused",
            ),
        ),
    ),
    Mutant(
        "expired-lease-keeps-its-receipt",
        "a lease that does not count for the limit any more can be acknowledged",
        (LIMITS,),
        (
            Change(
                f"{DDL}/whole_queue.sql",
                ",\n        last_read_at = last_read_at + interval '1 microsecond'",
                "",
            ),
        ),
    ),
    Mutant(
        "raised-rate-waits",
        "a raised rate holds only from the start time of the old rate on",
        (LIMITS,),
        (
            Change(
                f"{DDL}/whole_queue.sql",
                "SET free_at = now + spacing\n",
                "SET free_at = g.free_at\n",
            ),
        ),
    ),
    Mutant(
        "queue-burst-unlimited",
        "a whole queue saves starts without end while it is idle",
        (LIMITS,),
        (
            Change(
                f"{DDL}/whole_queue.sql",
                "- greatest(next_at, statement_timestamp() - saved))",
                "- least(next_at, statement_timestamp() - saved))",
            ),
        ),
    ),
    Mutant(
        "paused-retries",
        "messages in flight start again in a pause",
        (LIMITS,),
        (
            Change(
                f"{DDL}/slots.sql",
                "UPDATE {schema}.pgqueue_group SET free_at = 'infinity'",
                "UPDATE {schema}.pgqueue_group SET free_at = free_at",
            ),
        ),
    ),
    # Bugs that tests at full speed have to find.
    Mutant(
        "promise-two-readers",
        "a read leases a due message that another read is leasing",
        (f"{PROMISES}/test_delivered.py::test_no_message_is_read_during_its_lease",),
        (
            Change(
                f"{ENGINE}/read/read.sql",
                "    ORDER BY d.vt\n    LIMIT (SELECT {most})\n    FOR UPDATE OF d SKIP LOCKED",
                "    ORDER BY d.vt\n    LIMIT (SELECT {most})",
            ),
            Change(
                f"{ENGINE}/read/read.sql",
                "WHERE ctid = ANY(ARRAY(SELECT ctid FROM due WHERE NOT exhausted AND NOT blocked))",
                "WHERE id = ANY(ARRAY(SELECT id FROM due WHERE NOT exhausted AND NOT blocked))",
            ),
        ),
    ),
    Mutant(
        "promise-late-reader",
        "a late reader settles a message that another has leased since",
        (f"{PROMISES}/test_delivered.py::test_a_late_reader_settles_nothing",),
        (
            Change(
                f"{ENGINE}/settle/fence.sql",
                "((id, read_ct, last_read_at) IN (",
                "(true OR (id, read_ct, last_read_at) IN (",
            ),
        ),
    ),
    Mutant(
        "promise-once-too-often",
        "a message is delivered once more than max_deliveries",
        (
            f"{PROMISES}/test_delivered.py::test_no_message_is_delivered_more_often_than_max_deliveries",
        ),
        (
            Change(
                f"{ENGINE}/read/read.sql",
                "d.read_ct >= (SELECT %(max_deliveries)s::integer) AS exhausted",
                "d.read_ct > (SELECT %(max_deliveries)s::integer) AS exhausted",
            ),
        ),
    ),
    Mutant(
        "promise-release-counted",
        "a released delivery is counted",
        (f"{PROMISES}/test_delivered.py::test_a_released_delivery_is_not_counted",),
        (
            Change(
                f"{ENGINE}/settle/release.sql",
                "read_ct = greatest(read_ct - %(deliveries)s, 0),",
                "read_ct = read_ct,",
            ),
        ),
    ),
    Mutant(
        "promise-one-lost",
        "a batch lease that is unfolded loses its first message",
        (f"{PROMISES}/test_lost.py",),
        (
            Change(
                f"{ENGINE}/leases/rows.sql",
                "unnest(ids, enqueued_ats) AS m",
                "unnest(ids[2:], enqueued_ats[2:]) AS m",
            ),
        ),
    ),
    Mutant(
        "promise-two-messages-of-a-key",
        "a send that waited for another of its key does not look at the key again",
        (f"{PROMISES}/test_sent.py::test_a_key_has_one_message_at_a_time",),
        (
            Change(
                f"{DDL}/claim_keys.sql",
                "            PERFORM pg_advisory_xact_lock(hashtextextended(new.unique_key, "
                "new.queue_id));\n"
                "            old := {schema}.pgqueue_holder(new.queue_id, new.unique_key);\n",
                "",
            ),
            Change(
                f"{DDL}/claim_keys.sql",
                "IF old.id IS NOT NULL THEN\n        -- After",
                "IF false THEN\n        -- After",
            ),
        ),
    ),
    Mutant(
        "promise-key-left-held",
        "a message that was failed, cancelled or deleted holds its key",
        (f"{PROMISES}/test_sent.py::test_no_key_is_left_held",),
        (
            Change(
                f"{DDL}/claim_keys.sql",
                "claim.kind = 'done' AND EXISTS",
                "claim.kind = 'done' OR EXISTS",
            ),
        ),
    ),
    Mutant(
        "promise-overtaken",
        "an ack brings up the last message of a group",
        (f"{PROMISES}/test_ordered.py",),
        (
            Change(
                f"{DDL}/groups.sql",
                "ORDER BY w.id LIMIT 1) w ON true",
                "ORDER BY w.id DESC LIMIT 1) w ON true",
            ),
        ),
    ),
    Mutant(
        "promise-two-heads",
        "a message of a group is readable as soon as it is sent",
        (f"{PROMISES}/test_ordered.py",),
        (
            Change(
                f"{DDL}/send.sql",
                "    WHERE group_key IS NULL\n      AND (scheduled_at IS NULL",
                "    WHERE (scheduled_at IS NULL",
            ),
        ),
    ),
    Mutant(
        "promise-two-commits",
        "an effect of a transactional handler commits without its ack",
        (f"{PROMISES}/test_done.py::test_an_effect_and_its_ack_are_one_commit",),
        (
            Change(
                "django_pgqueue/worker/execution.py",
                "        if self._policy is AckPolicy.TRANSACTIONAL:\n            result",
                "        if False:\n            result",
            ),
        ),
    ),
    Mutant(
        "promise-tick-sent-twice",
        "two processes send a tick at once",
        (f"{PROMISES}/test_scheduled.py",),
        (
            Change(
                "django_pgqueue/queues/schedule.py",
                '                    .select_for_update(skip_locked=True, of=("self",))\n'
                "                    .first()",
                "                    .first()",
            ),
        ),
    ),
    Mutant(
        "promise-one-slot-more",
        "a group has one slot more than its limit",
        (f"{PROMISES}/test_limits.py::test_a_limit_of_groups_holds_for_all_kinds_of_reads",),
        (
            Change(
                f"{DDL}/slots.sql",
                "slots := coalesce(slots, CASE WHEN rate IS NOT NULL THEN burst END, 1);",
                "slots := 1 + coalesce(slots, CASE WHEN rate IS NOT NULL THEN burst END, 1);",
            ),
            Change(
                f"{DDL}/slots.sql",
                'coalesce(s."limit", q.group_limit, 1) AS slots',
                '1 + coalesce(s."limit", q.group_limit, 1) AS slots',
            ),
        ),
    ),
    Mutant(
        "promise-group-rate-forgotten",
        "a start in a group does not delay the next one",
        (
            f"{PROMISES}/test_limits.py::test_a_rate_of_groups_holds_for_all_kinds_of_reads[one-settings0]",
        ),
        (
            Change(
                f"{DDL}/slots.sql",
                "SET free_at = clock_timestamp() + rule.spacing\n",
                "SET free_at = NULL\n",
            ),
        ),
    ),
    Mutant(
        "promise-burst-unlimited",
        "a whole queue saves starts without end while it is idle",
        (f"{PROMISES}/test_limits.py::test_a_rate_holds_for_all_kinds_of_reads",),
        (
            Change(
                f"{DDL}/whole_queue.sql",
                "- greatest(next_at, statement_timestamp() - saved))",
                "- least(next_at, statement_timestamp() - saved))",
            ),
        ),
    ),
    Mutant(
        "asleep-unsaid",
        "no consumer says that it sleeps, so no send notifies",
        ("tests/ddl/test_wake.py",),
        (Change(f"{DDL}/wake.sql", "PERFORM setval(mark, 7);", "PERFORM mark;"),),
    ),
    Mutant(
        "asleep-unlooked",
        "a consumer that falls asleep does not see what came since its read",
        (f"{PROMISES}/test_woken.py",),
        (
            Change(
                f"{DDL}/wake.sql",
                "(SELECT statement_timestamp() FROM {schema}.pgqueue_ready",
                "(SELECT NULL::timestamptz FROM {schema}.pgqueue_ready",
            ),
        ),
    ),
    Mutant(
        "late-senders-forgotten",
        "a consumer does not poll for senders that saw nobody sleep and commit later",
        (f"{PROMISES}/test_woken.py",),
        (Change(f"{DDL}/wake.sql", "< doubt THEN doubt END", "< doubt THEN NULL END"),),
    ),
    Mutant(
        "cursor-by-id",
        "the order of a subscription is that of ids alone",
        (f"{SUBSCRIPTIONS}/test_cursor.py",),
        (
            Change(
                f"{CURSOR}/ahead.sql",
                "       AND m.id > CASE WHEN x.xid = p.after_xid THEN p.after_id "
                "ELSE -9223372036854775808 END\n",
                "       AND m.id > p.last_id\n",
            ),
        ),
    ),
    Mutant(
        "cursor-without-late",
        "a read does not look for transactions that were late",
        (f"{SUBSCRIPTIONS}/test_cursor.py",),
        (
            Change(
                f"{CURSOR}/ahead.sql",
                "WHERE m.enqueued_xid = x.xid\n",
                "WHERE m.enqueued_xid = x.xid AND false\n",
            ),
        ),
    ),
    Mutant(
        "cursor-since-too-early",
        "a round counts as over after its first read",
        (f"{SUBSCRIPTIONS}/test_cursor.py",),
        (
            Change(
                f"{CURSOR}/read_next.sql",
                "{ends_round} AND (count(*) < (SELECT {most}) OR (",
                "true OR (count(*) < (SELECT {most}) OR (",
            ),
        ),
    ),
    Mutant(
        "cursor-rest-too-early",
        "a round counts as over after its second read",
        (f"{SUBSCRIPTIONS}/test_cursor.py",),
        (
            Change(
                f"{CURSOR}/read_rest.sql",
                "count(*) < (SELECT {most}) AS is_over",
                "true AS is_over",
            ),
        ),
    ),
    Mutant(
        "cursor-without-swap",
        "a read leases messages though another one has moved the position",
        (f"{SUBSCRIPTIONS}/test_interleavings.py",),
        (
            Change(
                f"{CURSOR}/read_next.sql",
                "SELECT * FROM seen WHERE NOT skipped AND (SELECT count(*) FROM moved) = 1",
                "SELECT * FROM seen WHERE NOT skipped",
            ),
        ),
    ),
    Mutant(
        "cursor-target-now",
        "each read of a round reads by a snapshot of its own",
        (f"{SUBSCRIPTIONS}/test_cursor.py",),
        (
            Change(
                f"{CURSOR}/place.sql",
                "coalesce(c.until, {snapshot}) AS target",
                "{snapshot} AS target",
            ),
        ),
    ),
    Mutant(
        "leave-without-position",
        "an unread message leaves its source without the lock of the position",
        (f"{SUBSCRIPTIONS}/test_interleavings.py",),
        (
            Change(
                f"{DDL}/subscriptions.sql",
                "            DELETE FROM {schema}.pgqueue_cursor c\n"
                "            WHERE c.queue_id = reader.id AND c.number = place.number\n"
                "            RETURNING * INTO place;\n"
                "            CONTINUE WHEN NOT FOUND;\n",
                "",
            ),
            Change(
                f"{DDL}/subscriptions.sql",
                "            place.number := place.number + 1;\n",
                "",
            ),
            Change(
                f"{DDL}/subscriptions.sql",
                "            INSERT INTO {schema}.pgqueue_cursor SELECT place.*;\n",
                "",
            ),
        ),
    ),
    Mutant(
        "leave-beside-seek",
        "a message leaves its source while a subscription is moved back before it",
        (f"{SUBSCRIPTIONS}/test_interleavings.py",),
        (
            Change(
                f"{DDL}/subscriptions.sql",
                "PERFORM pg_advisory_xact_lock_shared(hashtextextended('pgqueue.source', s.id))",
                "PERFORM s.id",
            ),
        ),
    ),
    Mutant(
        "leave-with-lease",
        "a message that leaves its source takes a subscription's lease of it along",
        (f"{SUBSCRIPTIONS}/test_interleavings.py",),
        (
            Change(
                f"{DDL}/subscriptions.sql",
                "WHILE EXISTS (SELECT FROM {schema}.pgqueue_lease l",
                "WHILE false AND EXISTS (SELECT FROM {schema}.pgqueue_lease l",
            ),
        ),
    ),
    Mutant(
        "seek-takes-back-once",
        "a seek does not see what others changed while it took leases back",
        (f"{SUBSCRIPTIONS}/test_interleavings.py",),
        (
            Change(
                f"{CURSOR}/positions.py",
                '        while queue.run("subscriptions/take_back") != [(0,)]:\n            pass\n',
                '        queue.run("subscriptions/take_back")\n',
            ),
        ),
    ),
    Mutant(
        "seek-without-itself",
        "a seek passes over later messages of its own transaction",
        (f"{SUBSCRIPTIONS}/test_interleavings.py",),
        (
            Change(
                f"{CURSOR}/find.sql",
                "                 UNION SELECT own WHERE own IS NOT NULL) AS running",
                "                 ) AS running",
            ),
        ),
    ),
    Mutant(
        "step-without-fence",
        "a late worker stores a step",
        (STEPS,),
        (STORED_WITHOUT_FENCE,),
    ),
    Mutant(
        "step-without-lock",
        "a step is stored while a reader leases its message",
        (BESIDE,),
        (STORED_WITHOUT_LOCK,),
    ),
    Mutant(
        "step-of-a-late-worker",
        "a worker whose message was read again calls the functions of steps",
        (STEPS,),
        (Change(f"{FLOWS}/load_steps.sql", ") AS held) h", ") OR true AS held) h"),),
    ),
    Mutant(
        "step-of-any-queue",
        "a subscription finds the steps of its source",
        ("tests/flows/test_notes.py",),
        (STEPS_OF_ANY_QUEUE,),
    ),
    Mutant(
        "step-in-a-split-batch",
        "a step is lost while an extension splits the lease of its batch",
        (BESIDE,),
        (Change(f"{FLOWS}/steps.py", "range(1 if queue.source_id is None else 2)", "range(1)"),),
    ),
    Mutant(
        "step-called-again",
        "a step whose store had no answer is done again",
        (LOST_ANSWERS,),
        (
            Change(
                f"{FLOWS}/steps.py", "            self._stored = None  # it may", "            #"
            ),
        ),
    ),
    Mutant(
        "atomic-step-in-two-commits",
        "the writes of an atomic step commit without its value",
        (STEPS,),
        (STORED_AFTER_THE_COMMIT,),
    ),
    Mutant(
        "atomic-step-written-twice",
        "an atomic step writes again beside its own lost commit",
        (BESIDE,),
        (Change(f"{FLOWS}/durable.py", "if not is_first:", "if False:"),),
    ),
    Mutant(
        "note-without-fence",
        "a late worker stores a note",
        (STEPS,),
        (NOTED_WITHOUT_FENCE,),
    ),
    *(
        Mutant(f"promise-{name}", bug, tests, (change,))
        for name, bug, tests, change in (
            (
                "late-step",
                "a late worker stores a step",
                (LATE_WORKERS,),
                STORED_WITHOUT_FENCE,
            ),
            (
                "step-beside-a-reader",
                "a step is stored while a reader leases its message",
                (LATE_WORKERS,),
                STORED_WITHOUT_LOCK,
            ),
            (
                "late-note",
                "a late worker stores a note",
                (LATE_WORKERS,),
                NOTED_WITHOUT_FENCE,
            ),
            (
                "atomic-step-in-two-commits",
                "the writes of an atomic step commit without its value",
                (LATE_WORKERS,),
                STORED_AFTER_THE_COMMIT,
            ),
            (
                "step-of-any-queue",
                "a subscription finds the steps of its source",
                (
                    f"{PROMISES}/test_kept.py::test_subscriptions_and_their_source_have_steps_of_their_own",
                ),
                STEPS_OF_ANY_QUEUE,
            ),
        )
    ),
    Mutant(
        "wait-counted",
        "a wait counts its delivery",
        ("tests/flows/test_waits.py",),
        (Change(f"{FLOWS}/wait.sql", "greatest(d.read_ct - 1, 0)", "d.read_ct"),),
    ),
    Mutant(
        "wait-beside-a-signal",
        "a message that begins to wait does not lock its signal",
        (WAITS_BESIDE,),
        (
            Change(
                f"{FLOWS}/lock_signal.sql",
                "INSERT INTO pgqueue_signal (key, keep_until)\n"
                "VALUES (%(key)s::text, statement_timestamp() + %(timeout)s::interval + "
                "interval '1 day')\n",
                "SELECT sent_at IS NOT NULL, value::text FROM pgqueue_signal WHERE key = "
                "%(key)s::text UNION ALL SELECT false, NULL ORDER BY 1 DESC LIMIT 1 /*",
            ),
            Change(
                f"{FLOWS}/lock_signal.sql",
                "RETURNING sent_at IS NOT NULL, value::text\n",
                "%(timeout)s */\n",
            ),
        ),
    ),
    Mutant(
        "wait-decided-twice",
        "a timeout ends a wait that a signal has ended",
        (WAITS_BESIDE,),
        (
            Change(
                f"{FLOWS}/waits.py",
                "            if stored is not None:\n                return stored\n",
                "",
            ),
            Change(
                f"{FLOWS}/waits.py",
                "            if was_sent:\n                return steps.end_wait",
                "            if False:\n                return steps.end_wait",
            ),
            Change(
                f"{FLOWS}/store_step.sql",
                "DO UPDATE SET at = pgqueue_step.at",
                "DO UPDATE SET value = excluded.value",
            ),
        ),
    ),
    Mutant(
        "signal-sees-no-wait",
        "a signal does not look for the waits that were stored while it waited for their lock",
        (WAITS_BESIDE,),
        (
            Change(
                f"{DDL}/flows.sql",
                "RETURNS bigint LANGUAGE plpgsql {pinned} AS $$\nDECLARE\n    waited bigint;\n",
                "RETURNS bigint LANGUAGE plpgsql {pinned} AS $$\nDECLARE\n"
                "    waited bigint;\n"
                "    seen bigint[] := ARRAY(SELECT message_id FROM {schema}.pgqueue_wait "
                "WHERE key = signal_key);\n",
            ),
            Change(
                f"{DDL}/flows.sql",
                "DELETE FROM {schema}.pgqueue_wait WHERE key = signal_key RETURNING",
                "DELETE FROM {schema}.pgqueue_wait WHERE key = signal_key "
                "AND message_id = ANY(seen) RETURNING",
            ),
        ),
    ),
    Mutant(
        "batch-counted-by-two",
        "a batch is not locked while it is counted",
        (BATCHES_BESIDE,),
        (
            Change(
                BATCH,
                '        locked = rows.select_related("queue").select_for_update('
                'skip_locked=True, of=("self",))\n',
                '        locked = rows.select_related("queue")\n',
            ),
        ),
    ),
    Mutant(
        "batch-left-to-the-other-count",
        "who finds a batch locked does not count it again",
        (BATCHES_BESIDE,),
        (Change(BATCH, "        if len(found) < len(ids):", "        if False:"),),
    ),
    Mutant(
        "batch-done-unsealed",
        "a batch is done when its members so far have ended",
        (BATCHES,),
        (Change(BATCH, "sealed_at__isnull=False, members=_ENDED", "members=_ENDED"),),
    ),
    Mutant(
        "batch-member-after-the-seal",
        "a sealed batch takes members",
        (BATCHES,),
        (
            Change(
                f"{FLOWS}/add_members.sql",
                "WHERE id = %(batch)s::bigint AND sealed_at IS NULL",
                "WHERE id = %(batch)s::bigint",
            ),
        ),
    ),
    Mutant(
        "batch-live-counted",
        "a member in the queue counts as deleted",
        (BATCHES,),
        (
            Change(
                f"{FLOWS}/count_members.sql",
                "WHERE id = m.id LIMIT 1) THEN NULL",
                "WHERE false) THEN NULL",
            ),
        ),
    ),
    Mutant(
        "batch-dead-letters-lost",
        "dead letters count as deleted",
        (BATCHES,),
        (
            Change(
                f"{FLOWS}/count_members.sql",
                "WHERE id = m.id LIMIT 1) THEN 'DEAD",
                "WHERE false) THEN 'DEAD",
            ),
        ),
    ),
    Mutant(
        "batch-counted-twice",
        "a member that has ended stays in its part, and is counted again",
        (BATCHES,),
        (
            Change(
                f"{FLOWS}/count_members.sql",
                "WHERE ended > 0 AND ids IS NOT NULL",
                "WHERE ended < 0 AND ids IS NOT NULL",
            ),
        ),
    ),
    Mutant(
        "batch-counted-in-part",
        "a count stops after the first members",
        (BATCHES,),
        (Change(BATCH, "if looked >= most}", "if looked > 10 * most}"),),
    ),
    Mutant(
        "batch-called-and-not-done",
        "an error after the callback leaves it sent",
        (BATCHES,),
        (
            Change(
                BATCH,
                "            with transaction.atomic(using=self._alias):\n"
                "                self._update(callback_id=self._call(),",
                "            if True:\n                self._update(callback_id=self._call(),",
            ),
        ),
    ),
    Mutant(
        "batch-members-expired",
        "retention removes members that are not counted",
        ("tests/batches/test_keeping.py",),
        (Change("django_pgqueue/maintenance/retention.py", ", *_uncounted_from(work)])", "])"),),
    ),
    Mutant(
        "batch-gone-before-its-callback",
        "a batch is deleted while its callback is in the queue",
        ("tests/batches/test_keeping.py",),
        (
            Change(
                "django_pgqueue/maintenance/prune_batches.sql",
                "WHERE m.id = b.callback_id\n",
                "WHERE m.id = b.callback_id AND false\n",
            ),
        ),
    ),
    Mutant(
        "batch-block-in-pieces",
        "a block's sends are commits of their own",
        (f"{PROMISES}/test_called_back.py", BATCHES),
        (
            Change(
                "django_pgqueue/queues/bound.py",
                "        with transaction.atomic(using=self._open().alias):\n"
                "            batch = self._begin(then, name, None)\n",
                "        if True:\n            batch = self._begin(then, name, None)\n",
            ),
        ),
    ),
)


def table(verdicts: Iterable[Verdict]) -> str:
    """The verdicts as a Markdown table: mutant, bug, catcher, seconds."""
    rows = ["| mutant | bug | caught by | seconds |", "|---|---|---|---:|"]
    for each in verdicts:
        name, bug = each.mutant.name, each.mutant.bug
        rows.append(f"| {name} | {bug} | {each.text} | {each.seconds:.0f} |")
    return "\n".join(rows)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [mutant.name for mutant in MUTANTS]
    parser.add_argument("--name", action="append", choices=names, help="only this one; repeatable")
    parser.add_argument("--list", action="store_true", help="name the mutants and their bugs")
    options = parser.parse_args(arguments)
    if options.list:
        for mutant in MUTANTS:
            print(f"{mutant.name}: {mutant.bug}")
        return 0
    chosen = [mutant for mutant in MUTANTS if not options.name or mutant.name in options.name]
    verdicts: list[Verdict] = []
    with laboratory() as bench:
        for number, mutant in enumerate(chosen, 1):
            print(f"{number}/{len(chosen)} {mutant.name} ...", end=" ", file=sys.stderr, flush=True)
            verdict = bench.examine(mutant)
            print(f"{verdict.catcher or 'SURVIVED'} ({verdict.seconds:.0f} s)", file=sys.stderr)
            verdicts.append(verdict)
    print(table(verdicts))
    survivors = [verdict for verdict in verdicts if verdict.catcher is None]
    for verdict in survivors:
        print(f"\n{verdict.mutant.name} survived:\n{verdict.output[-2000:]}", file=sys.stderr)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
