"""Each fault of producers, consumers and the database, and its permitted consequences.

    CHAOS_SEED=7 python3 run.py test tests/acceptance/chaos           # repeat a run
    CHAOS_SCALE=20 python3 run.py test tests/acceptance/chaos         # a long run
    python -m tests.acceptance.chaos --minutes 6 --seeds 1 2 3        # for a time, with counts

Under every fault, nothing is lost and nothing is a phantom: ``World.finish`` checks this. Further
promises depend on the mode and on the fault.
"""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from tests.acceptance.chaos.checker import Verdict, starts_above
from tests.acceptance.chaos.proxy import Proxy
from tests.acceptance.chaos.world import LEASE, QUEUES, World
from tests.working import history

pytestmark = [pytest.mark.acceptance]

#: The most messages that a process holds without an ack while it keeps up with its producers:
#: running, or ended just now. One that starts on a backlog can hold many more.
UNDER_WAY = 60


def once_in_transactions(verdict: Verdict, world: World) -> None:
    """No effect of a transactional or a locked handler happened twice."""
    twice = world.twice_in_transactions()
    world.tell(twice)
    assert twice == []


def explained(verdict: Verdict, faults: int) -> None:
    """At most the messages that the faults interrupted were delivered again."""
    assert verdict.redelivered <= verdict.asked_for + faults * UNDER_WAY
    assert len(verdict.duplicated) <= verdict.redelivered


def test_consumers_killed_at_any_moment(world):
    """kill -9 at random times, and by a message before or after its effect."""
    world.queues()
    consumers = [world.consume() for _ in range(3)]
    world.produce(350, producers=2, faults=["kill"], fault_rate=0.01, queues=QUEUES[:3])

    def kill() -> None:
        world.pause(0.5, 1.5)
        victim = world.draw.choice(consumers)
        victim.kill()
        for each in consumers:
            if not each.alive:
                each.start()

    world.while_producing(kill, least=3)
    verdict = world.finish(killed=True)

    once_in_transactions(verdict, world)
    # A message that kills its process also interrupts the other messages there.
    explained(verdict, world.faults + verdict.asked_for)


def test_consumers_stopped_past_their_leases(world):
    """SIGSTOP for longer than the visibility timeout, then SIGCONT: the acks come too late."""
    world.queues()
    frozen = world.consume()
    world.consume()
    world.produce(600, rate=150)

    def freeze() -> None:
        world.until_started(frozen)
        world.pause(0.2, 0.6)
        frozen.send(signal.SIGSTOP)
        time.sleep(LEASE * 1.5)
        frozen.send(signal.SIGCONT)

    world.while_producing(freeze, least=1)
    verdict = world.finish()

    once_in_transactions(verdict, world)
    explained(verdict, world.faults)


def test_backends_terminated_at_random(world):
    world.queues()
    for _ in range(2):
        # A consumer that loses its connection while it starts ends with an error.
        world.until_started(world.consume())
    world.produce(400, producers=2, rate=70)

    def terminate() -> None:
        world.pause(0.05, 0.4)
        world.terminate_backends(share=0.3)

    world.while_producing(terminate, least=5)
    verdict = world.finish()

    once_in_transactions(verdict, world)
    explained(verdict, world.faults)


def test_the_server_crashes_under_load(world):
    """The server is stopped in immediate mode and restarted, twice."""
    world.queues()
    for _ in range(2):
        # A consumer that finds no server when it starts must end; its supervisor restarts it.
        world.until_started(world.consume())
    world.produce(500, producers=2, rate=70)

    for _ in range(2):
        world.pause(1, 2)
        world.server.kill("immediate")
        world.pause(0, 1)
        world.server.start()
        world.faults += 1
    verdict = world.finish()

    once_in_transactions(verdict, world)
    explained(verdict, world.faults * len(world.consumers))


def test_producers_that_sleep_before_the_commit_or_roll_back_and_no_notification(world):
    """Commits out of order, rolled-back rows, and consumers without notifications."""
    world.queues(notify=False)
    for _ in range(2):
        world.consume()
    world.produce(150, producers=5, rate=50, sends=["plain", "sleep", "rollback"])

    verdict = world.finish()

    assert (verdict.duplicated, verdict.redelivered) == ([], 0)


def test_a_listener_that_is_cut_off_again_and_again(world):
    world.queues()
    world.consume()
    world.produce(200, rate=60)

    def cut() -> None:
        world.pause(0.05, 0.2)
        with world.connect() as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = 'chaos' AND query LIKE 'LISTEN%'"
            )

    world.while_producing(cut, least=5)
    verdict = world.finish()

    assert (verdict.duplicated, verdict.redelivered) == ([], 0)


def test_connections_that_fall_silent(world, tmp_path):
    """Packets are dropped without an error, so only timeouts detect it."""
    world.queues()
    directory = tmp_path / "proxy"
    directory.mkdir()
    proxy = Proxy(Path(world.server.host), directory)
    try:
        consumer = world.consume("--database-timeout", 1.5, url=proxied(world, directory))
        world.until_started(consumer)
        world.produce(300, rate=60)

        def silence() -> None:
            world.pause(1, 2)
            proxy.silence()
            time.sleep(4)

        world.while_producing(silence, least=1)
        verdict = world.finish()
    finally:
        proxy.close()

    once_in_transactions(verdict, world)
    explained(verdict, world.faults)


def proxied(world: World, directory: Path) -> str:
    return f"postgresql://postgres@/chaos?host={directory}&port={world.server.port}"


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_is_an_hour_off(world, tmp_path, hours):
    """Every wall clock of Python is wrong in the consumer, from its start."""
    (tmp_path / "sitecustomize.py").write_text(WRONG_CLOCK.format(seconds=hours * 3600))
    world.queues("lease", "transactional")
    consumer = world.consume(path=[str(tmp_path)])
    world.produce(
        150, queues=["lease", "transactional"], faults=["raise"], fault_rate=0.1, rate=100
    )

    verdict = world.finish()

    assert f"clock is off by {hours * 3600}" in consumer.output
    assert verdict.redelivered == verdict.asked_for
    assert not [op for op in verdict.duplicated if op not in raised_after(world)]


WRONG_CLOCK = """
import datetime, sys, time
real = time.time
time.time = lambda: real() + {seconds}
time.time_ns = lambda: int(time.time() * 1e9)
class Wrong(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(time.time(), tz)
    @classmethod
    def utcnow(cls):
        return cls.fromtimestamp(time.time(), datetime.timezone.utc).replace(tzinfo=None)
datetime.datetime = Wrong
print("clock is off by", round(time.time() - real()), flush=True)
"""


def raised_after(world: World) -> set[str]:
    """Ops that raised after their effect: in lease mode the effect is repeated."""
    return {event["op"] for event in history.read(world.history) if event["event"] == "fault"}


def test_handlers_that_end_in_every_bad_way(world):
    """Handlers raise, exit, run out of memory, hang, spin and die, under a supervisor."""
    world.queues("lease", "transactional")
    supervisor = world.consume("--processes", 2)
    world.produce(
        200,
        queues=["lease", "transactional"],
        faults=["raise", "sys.exit", "memory", "hang", "spin", "exit"],
        fault_rate=0.04,
        rate=100,
    )

    verdict = world.finish(killed=True)

    assert supervisor.process.returncode == 0
    once_in_transactions(verdict, world)
    explained(verdict, verdict.asked_for)


def test_handlers_that_deadlock_in_the_database(world):
    world.queues("lease", "transactional")
    world.consume()
    with world.connect() as connection:
        for number in range(10):
            keys = [1, 2] if number % 2 else [2, 1]
            send(connection, world, "transactional", number, before="lock", keys=keys, times=99)

    verdict = world.finish()

    once_in_transactions(verdict, world)
    assert len(world.state().completed) == 10
    assert verdict.redelivered > 0, "there was no deadlock"


def send(connection: object, world: World, queue: str, number: int, **body: object) -> str:
    op = f"{queue}-{number}"
    connection.execute(  # type: ignore[attr-defined]
        "INSERT INTO pgqueue_message (queue_id, body) "
        "SELECT id, %s::jsonb FROM pgqueue_queue WHERE name = %s",
        [json.dumps({"op": op, **body}), queue],
    )
    path = world.history / "1.jsonl"
    with path.open("a") as out:
        for event in ("invoke", "ok"):
            out.write(json.dumps({"n": number, "at": 0, "event": event, "op": op}) + "\n")
    return op


def test_a_poison_message_dies_alone(world):
    """A poison message kills every process that runs it. After max_deliveries it is dead-lettered,
    and no other message was redelivered more than twice because of it.
    """
    world.queues("lease", max_deliveries=3)
    world.consume("--processes", 2)
    with world.connect() as connection:
        for number in range(100):
            poison = {"before": "exit", "times": 99} if number == 50 else {}
            send(connection, world, "lease", number, **poison)

    verdict = world.finish(killed=True)

    deliveries: dict[str, int] = {}
    for event in history.read(world.history):
        if event["event"] == "deliver":
            deliveries[event["op"]] = deliveries.get(event["op"], 0) + 1
    state = world.state()
    poison = deliveries.pop("lease-50")
    assert (list(state.failed), poison) == (["lease-50"], 3)
    assert len(state.completed) == 99
    assert max(deliveries.values()) <= 3
    explained(verdict, 2)


def test_a_graceful_stop_leaves_no_lease_and_delivers_nothing_twice(world):
    """SIGTERM at random times, repeatedly, while other consumers continue."""
    world.queues()
    consumers = [world.consume() for _ in range(2)]
    world.produce(500, rate=100)

    def restart() -> None:
        world.pause(0.3, 1.0)
        victim = world.draw.choice(consumers)
        world.until_started(victim)
        victim.terminate()
        assert victim.wait(120) == 0
        victim.start()

    world.while_producing(restart, least=3)
    verdict = world.finish()

    assert (verdict.duplicated, verdict.redelivered) == ([], 0)


@pytest.mark.parametrize(
    "limits",
    [
        {"group_limit": 3},
        {"limit": 1},
        {"group_rate": "30/s", "group_burst": 2},
        {"group_limit": 2, "limit": 5},
        {"rate": "100/s", "burst": 3},
    ],
    ids=str,
)
def test_limits_hold_while_consumers_are_killed_and_connections_terminated(world, limits):
    world.queues("lease", "transactional", limits=limits)
    consumers = [world.consume() for _ in range(3)]
    most = world.watch_flight()
    world.produce(
        400,
        producers=2,
        queues=["lease", "transactional"],
        groups=["a", "b", "c"],
        sends=["plain", "transaction", "rollback"],
        faults=["raise", "kill"],
        fault_rate=0.02,
    )

    def disturb() -> None:
        world.pause(0.3, 1.0)
        if world.draw.random() < 0.5:
            world.draw.choice(consumers).kill()
        else:
            for each in consumers:
                world.until_started(each)
            world.terminate_backends(share=0.3)
        for each in consumers:
            if not each.alive:
                each.start()

    world.while_producing(disturb, least=4)
    verdict = world.finish(killed=True)

    once_in_transactions(verdict, world)
    for name in ("lease", "transactional"):
        in_groups = max(most[f"{name} {group}"] for group in "abc")
        assert in_groups == limits.get("group_limit", in_groups), "at once in a group"
        assert most[name] == limits.get("limit", most[name]), "at once in the queue"
    for queue in ("lease", "transactional"):
        groups = world.starts(queue)
        if "rate" in limits:
            groups["all"] = [at for starts in groups.values() for at in starts]
            assert starts_above(groups["all"], 100, 3) < 0.001
        elif "group_rate" in limits:
            for starts in groups.values():
                assert starts_above(starts, 30, 2) < 0.001
