"""Steps of messages, while handlers fail, leases end too early, and processes die."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from django.db import Error, connection

from django_pgqueue.models import Step, queue
from tests.app.models import Order
from tests.conftest import run_sql
from tests.promises.full_speed import FullSpeed, Note
from tests.promises.pages import promise
from tests.promises.stepping import NAMES, Stepper, end_leases
from tests.worker.test_processes import url
from tests.working.running import Command, runconsumer

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]

STORED = (
    "Once the value of a step is stored, no later delivery of its message calls the step's "
    "function again: it gets that value."
)
ONE_COMMIT = (
    "A step with atomic=True happens exactly once: its writes and its value are one commit."
)
FENCED = "A worker whose message was read again since stores no step and no note."
EXPLAINED = [
    "A step without atomic=True may run again if its process dies, or its lease is lost, before "
    "the value is stored."
]

#: Records, in the order of the locks of a message's row, who reads it and who stores something.
RECORDS = """
    CREATE TABLE tests_kept (
        number bigserial PRIMARY KEY, queue_id bigint, id bigint, what text, by bigint);
    CREATE INDEX ON tests_kept (id, number) WHERE what = 'read';

    CREATE FUNCTION tests_kept(queue_id bigint, id bigint, what text, by bigint) RETURNS void
    LANGUAGE sql AS 'INSERT INTO tests_kept (queue_id, id, what, by) VALUES ($1, $2, $3, $4)';

    CREATE FUNCTION tests_read() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        PERFORM tests_kept(NEW.queue_id, NEW.id, 'read',
                           (extract(epoch FROM NEW.last_read_at) * 1000000)::bigint);
        RETURN NULL; END $$;
    CREATE TRIGGER tests_leased AFTER INSERT ON pgqueue_deferred
        FOR EACH ROW WHEN (NEW.state = 'PROCESSING') EXECUTE FUNCTION tests_read();
    CREATE TRIGGER tests_read AFTER UPDATE ON pgqueue_deferred
        FOR EACH ROW WHEN (NEW.state = 'PROCESSING'
            AND NEW.last_read_at IS DISTINCT FROM OLD.last_read_at) EXECUTE FUNCTION tests_read();

    CREATE FUNCTION tests_batch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        PERFORM tests_kept(NEW.queue_id, id, 'read',
                           (extract(epoch FROM NEW.read_at) * 1000000)::bigint)
        FROM unnest(NEW.ids) AS id;
        RETURN NULL; END $$;
    CREATE TRIGGER tests_read AFTER INSERT ON pgqueue_lease
        FOR EACH ROW EXECUTE FUNCTION tests_batch();

    CREATE FUNCTION tests_stored() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        PERFORM tests_kept(NEW.queue_id, NEW.message_id, TG_TABLE_NAME,
                           (NEW.value->>'by')::bigint);
        RETURN NULL; END $$;
    CREATE TRIGGER tests_stored AFTER INSERT OR UPDATE OF value ON pgqueue_step
        FOR EACH ROW EXECUTE FUNCTION tests_stored();
    CREATE TRIGGER tests_stored AFTER INSERT OR UPDATE OF value ON pgqueue_note
        FOR EACH ROW EXECUTE FUNCTION tests_stored();
"""
FORGET = """
    DROP TRIGGER tests_leased ON pgqueue_deferred;
    DROP TRIGGER tests_read ON pgqueue_deferred;
    DROP TRIGGER tests_read ON pgqueue_lease;
    DROP TRIGGER tests_stored ON pgqueue_step;
    DROP TRIGGER tests_stored ON pgqueue_note;
    DROP TABLE tests_kept;
    DROP FUNCTION tests_kept, tests_read, tests_batch, tests_stored;
"""
#: What was stored by another delivery than the message's last.
LATE = """
    SELECT stored.* FROM tests_kept stored
    WHERE what <> 'read' AND by IS DISTINCT FROM (
        SELECT read.by FROM tests_kept read
        WHERE read.id = stored.id AND read.queue_id = stored.queue_id AND read.what = 'read'
          AND read.number < stored.number
        ORDER BY read.number DESC LIMIT 1)
"""
#: Orders without the value of their step, atomic steps without their order, and second ones.
NOT_ONCE = f"""
    WITH made AS (SELECT number, note AS call FROM {Order._meta.db_table}),
    stored AS (
        SELECT concat_ws(' ', q.name, s.message_id, s.name) AS number, s.value->>'call' AS call
        FROM pgqueue_step s JOIN pgqueue_queue q ON q.id = s.queue_id
        WHERE starts_with(s.name, 'atomic'))
    SELECT made, stored FROM made FULL JOIN stored USING (number, call)
    WHERE made IS NULL OR stored IS NULL
    UNION ALL
    SELECT min(made), NULL FROM made GROUP BY number HAVING count(*) > 1
"""
COMPLETED = """
    SELECT q.name, a.id FROM pgqueue_archive a JOIN pgqueue_queue q ON q.id = a.queue_id
    WHERE a.state = 'COMPLETED'
"""
SENT = """
    SELECT count(*) FROM pgqueue_message
    WHERE queue_id IN (SELECT id FROM pgqueue_queue WHERE source_id IS NULL)
"""
#: How many messages wait at most, and so how many there are at least.
MOST = 80


class Name(NamedTuple):
    """Names a step of a message."""

    queue: str
    id: int
    step: str


@pytest.fixture
def records(committed: None) -> Iterator[None]:
    run_sql(RECORDS)
    yield
    run_sql(FORGET)


def send_some(name: str) -> None:
    """Send messages, unless many are waiting."""
    time.sleep(0.01)
    try:
        [(waiting,)] = run_sql("SELECT count(*) FROM (SELECT FROM pgqueue_live LIMIT %s) l", [MOST])
        if waiting < MOST:
            queue(name).send_batch([{}] * 20)
    except Error:
        connection.close()  # it was cut


def all_are_completed(readers: int = 1) -> bool:
    """Whether each message was archived as completed, by so many queues."""
    [(sent,)] = run_sql(SENT)
    return len(run_sql(COMPLETED)) == sent * readers


def judge(notes: Sequence[Note]) -> None:
    """Compare what was noted, what is stored, and what the functions of atomic steps wrote."""
    found = Step.objects.values_list("queue__name", "message_id", "name", "value")
    stored: dict[Name, Any] = {Name(*each): value for *each, value in found}
    completed = run_sql(COMPLETED)
    calls = [note for note in notes if note["event"] == "calls"]
    got = [note for note in notes if note["event"] == "got"]

    # All messages end, with all their steps.
    assert len(completed) >= MOST
    assert stored.keys() == {Name(*each, step) for each in completed for step in NAMES}
    assert {value["call"] for value in stored.values()} <= {note["call"] for note in calls}
    # A delivery after the one that has stored the value was read after its commit.
    assert [each for each in calls if each["by"] > stored[name_of(each)]["by"]] == []
    assert [each for each in got if each["value"] != stored[name_of(each)]] == []
    assert {name_of(each) for each in got} == stored.keys()
    assert run_sql(NOT_ONCE) == []
    assert run_sql(LATE) == []


def name_of(note: Note) -> Name:
    return Name(note["queue"], note["id"], note["name"])


def work_off(
    full_speed: FullSpeed, consume: Any, kind: str, names: Sequence[str], **options: Any
) -> list[Note]:
    """Consume each queue with two consumers of a kind until all is done; returns the notes."""
    started = [
        consume(
            handlers=[Stepper(full_speed.journal, seed).handler(kind, name)],
            options={"workers": 4},
        )
        for seed in range(2)
        for name in names
    ]
    for each in started:
        each.until_registered()
    full_speed.beside(partial(send_some, "orders"))
    full_speed.run(**options)
    full_speed.wait(partial(all_are_completed, len(names)))
    for each in started:
        each.stop()
    return full_speed.notes()


def some_are_late(full_speed: FullSpeed) -> Callable[[], object]:
    return lambda: full_speed.notes("late")


KINDS = ["NACK_ON_ERROR", "batch", "async"]


@promise(STORED, ONE_COMMIT)
@pytest.mark.parametrize("kind", KINDS)
def test_each_step_is_done_once_though_handlers_fail(full_speed, consume, records, kind):
    queue("orders").create(visibility_timeout=60, max_deliveries=10_000)

    notes = work_off(full_speed, consume, kind, ["orders"])

    judge(notes)
    calls = Counter(name_of(note) for note in notes if note["event"] == "calls")
    assert set(calls.values()) == {1}
    assert sum(note["event"] == "got" for note in notes) > len(calls)


@promise(STORED, ONE_COMMIT, FENCED)
@pytest.mark.parametrize("kind", KINDS)
def test_late_workers_and_cut_connections_store_no_second_value(full_speed, consume, records, kind):
    queue("orders").create(visibility_timeout=1, max_deliveries=10_000)
    full_speed.threads(end_leases, 1)
    full_speed.cut_connections(of_consumers=True)

    notes = work_off(full_speed, consume, kind, ["orders"], until=some_are_late(full_speed))

    assert full_speed.cut
    judge(notes)


@promise(STORED, ONE_COMMIT, FENCED)
def test_subscriptions_and_their_source_have_steps_of_their_own(full_speed, consume, records):
    queue("orders").create(visibility_timeout=1, max_deliveries=10_000)
    queue("audit").subscribe(
        to="orders", archive_completed=True, visibility_timeout=1, max_deliveries=10_000
    )
    full_speed.threads(end_leases, 1)

    names = ["orders", "audit"]
    notes = work_off(full_speed, consume, "NACK_ON_ERROR", names, until=some_are_late(full_speed))

    judge(notes)


@promise(STORED, ONE_COMMIT)
def test_processes_that_are_killed_do_each_atomic_step_once(full_speed, records, tmp_path):
    names = ["steps", "async-steps"]
    for name in names:
        queue(name).create(visibility_timeout=1, max_deliveries=10_000)
        full_speed.beside(partial(send_some, name))

    with (
        runconsumer(url(), *names, "--workers", 4, STEPS_NOTES=tmp_path) as one,
        runconsumer(url(), *names, "--workers", 4, STEPS_NOTES=tmp_path) as two,
    ):
        killed: list[int] = []
        full_speed.beside(partial(kill, full_speed, [one, two], tmp_path, killed))
        full_speed.run(until=lambda: len(killed) >= 2)
        full_speed.wait(all_are_completed)

    judge(full_speed.notes())


def kill(
    full_speed: FullSpeed, processes: Sequence[Command], folder: Path, killed: list[int]
) -> None:
    """Kill a process that has done something, and start it again."""
    victim = full_speed.draw.choice(processes)
    notes = folder / f"{victim.pid}.notes"
    if notes.exists() and notes.stat().st_size > 5000:
        killed.append(victim.pid)
        victim.kill()
        victim.start()
    time.sleep(full_speed.draw.uniform(0.1, 0.4))
