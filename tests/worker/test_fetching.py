"""How a consumer gets messages: by notification, when due, or by polling."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from django_pgqueue.acks import AckPolicy
from django_pgqueue.engine.read import reading
from django_pgqueue.engine.read.sleep import Sleep
from django_pgqueue.engine.rows import Delivery
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.handlers import Handler
from django_pgqueue.models import ArchivedMessage, Message, Process, Queue
from django_pgqueue.worker import Consumer as Worker
from django_pgqueue.worker import Options
from django_pgqueue.worker.buffer import FetchPlan
from django_pgqueue.worker.fetcher import Fetcher
from django_pgqueue.worker.loop import Loop
from django_pgqueue.worker.running import Running
from django_pgqueue.worker.settler import Settler
from django_pgqueue.worker.subscription import Subscription
from django_pgqueue.worker.workers import LockedWorker
from tests.conftest import run_sql, send_untold
from tests.waiting import until
from tests.worker.consuming import InThread, live, outcomes, subscribed

pytestmark = pytest.mark.django_db(transaction=True)


LISTENERS = "FROM pg_stat_activity WHERE query LIKE 'LISTEN%%' AND datname = current_database()"


def listeners() -> int:
    return run_sql(f"SELECT count(*) {LISTENERS}")[0][0]


def settled(run: InThread, seconds: float = 0.5) -> None:
    """Wait until the consumer listens, and its next poll is at least ``seconds`` away."""
    until(lambda: listeners() == 1)
    plan = run.subscription.buffer.plan
    until(lambda: plan.at - time.monotonic() > seconds)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times at which consumers look for messages."""
    moments: list[float] = []

    def noted(look: Callable[..., Any]) -> Callable[..., Any]:
        def look_and_note(*args: Any) -> Any:
            found = look(*args)
            moments.append(time.monotonic())
            return found

        return look_and_note

    monkeypatch.setattr(Fetcher, "_fetch", noted(Fetcher._fetch))
    monkeypatch.setattr(LockedWorker, "_handle_one", noted(LockedWorker._handle_one))
    return moments


def test_a_notification_wakes_long_before_the_next_poll(committed_orders, consume):
    run = consume(lambda message: None, max_fetch_interval=30)
    for _ in range(3):
        settled(run, 5)
        sent = time.monotonic()
        committed_orders.send(1)
        done = run.subscription.counts.completed + 1
        until(lambda: run.subscription.counts.completed == done)  # noqa: B023

        assert time.monotonic() - sent < 3


def test_a_process_leaves_messages_to_others_after_notifications_in_vain(orders):
    fetcher, subscription = a_fetcher()
    plan = subscription.buffer.plan
    fetcher.set_listening("default", True)
    times = []
    for _ in range(40):
        plan.at = float("inf")
        fetcher.notified("orders", 4711)
        times.append(plan.at)
        fetcher._fetch(subscription)
    orders.send(1)
    fetcher.notified("orders", 4711)
    plan.asleep = False
    fetcher._fetch(subscription)
    fetcher.notified("orders", 4711)

    assert times[:2] == [0.0, 0.0]
    assert all(times[2:])
    assert plan.at == 0.0


def test_a_poll_in_vain_is_one_statement(orders, django_assert_num_queries):
    fetcher, subscription = a_fetcher()
    fetcher.set_listening("default", True)
    fetcher._fetch(subscription)

    with django_assert_num_queries(1) as asleep:
        fetcher._fetch(subscription)
    orders.send(1)
    fetcher._fetch(subscription)

    assert "pgqueue_fall_asleep" in asleep[0]["sql"]
    assert len(subscription.buffer) == 1


def a_fetcher(allowance: Callable[[], int] | None = None) -> tuple[Fetcher, Subscription]:
    """A fetcher for one worker with a long polling interval, without the other loops."""
    subscription = subscribed(max_workers=1, max_fetch_interval=30)
    return Fetcher([subscription], [Settler(0)], allowance=allowance), subscription


def test_a_message_taken_while_the_fetcher_finds_the_buffer_full_lets_it_fetch(orders):
    orders.send_batch(range(100))
    taken: list[Message] = []

    def take() -> int:
        taken.extend(subscription.buffer.take(100))
        return 1000

    fetcher, subscription = a_fetcher(take)
    while subscription.buffer.free(1):
        fetcher._fetch(subscription)

    wait = fetcher.tick()

    assert taken
    assert wait == 0


def test_a_slow_worker_that_takes_its_last_message_triggers_a_fetch(orders):
    orders.send_batch(range(100))
    fetcher, subscription = a_fetcher()
    buffer = subscription.buffer
    fetcher._fetch(subscription)
    running = Running(buffer.take())
    running.started -= 60
    subscription.end(running)
    while len(buffer) > 1:
        buffer.take()
    waits = fetcher.tick(), fetcher.tick()

    buffer.take()

    assert waits[1] > 0
    assert buffer.plan.at == 0


def test_a_notification_counts_whenever_it_comes(orders):
    fetcher, subscription = a_fetcher()

    class Interrupted(FetchPlan):
        """Finishes the fetch thread's planning in the middle of the notification."""

        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if name == "at" and value == 0.0 and not planning:
                planning.append(True)
                fetcher._plan(subscription, 10, 0)

    planning = [True]
    subscription.buffer.plan = Interrupted(threading.Event())
    planning.clear()

    fetcher.notified("orders", 4711)

    assert subscription.buffer.plan.at == 0


@pytest.mark.parametrize(
    ("policy", "together"),
    [(AckPolicy.NACK_ON_ERROR, True), (AckPolicy.TRANSACTIONAL, False)],
)
def test_a_backlog_is_leased_in_batches_unless_each_message_has_its_transaction(
    committed_orders, consume, held, policy, together
):
    sent = committed_orders.send_batch(range(200))

    run = consume(held.work, ack_policy=policy, fetch_batch_size=20, overfetch_factor=4)
    until(lambda: run.subscription.counts.fetched >= 40)
    leased = run_sql("SELECT ids FROM pgqueue_lease")
    held.let_go()

    assert bool(leased) is together
    until(lambda: run.subscription.counts.completed == 200)
    assert ArchivedMessage.objects.count() == len(sent)
    assert run_sql("SELECT ids FROM pgqueue_lease") == []


def test_a_delayed_message_is_handled_when_it_is_due(committed_orders, consume):
    run = consume(lambda message: None, max_fetch_interval=30)
    until(lambda: listeners() == 1)
    committed_orders.send(1, delay=1)
    sent = time.monotonic()

    until(lambda: run.subscription.counts.completed == 1)

    assert 0.8 < time.monotonic() - sent < 5


@pytest.mark.parametrize("locked", [False, True])
def test_without_listening_it_polls(committed_orders, consume, locked, looks):
    run = consume(
        lambda message: None, locked=locked, max_fetch_interval=0.2, options={"listen": False}
    )
    until(lambda: len(looks) >= 3)
    committed_orders.send_batch([1, 2, 3])

    until(lambda: run.subscription.counts.completed == 3)
    assert listeners() == 0


def test_the_listener_comes_back_after_its_connection_was_killed(committed_orders, consume, events):
    run = consume(lambda message: None, max_fetch_interval=30)
    settled(run, 5)

    run_sql(f"SELECT pg_terminate_backend(pid) {LISTENERS}")
    until(lambda: any(kwargs.get("operation") == "listen" for _, kwargs in events))
    settled(run, 5)
    committed_orders.send(1)

    until(lambda: run.subscription.counts.completed == 1, 5)


def test_messages_sent_while_no_consumer_listened_are_found(committed_orders, consume):
    """After LISTEN, the consumer looks for messages first."""
    committed_orders.send_batch(list(range(100)))

    run = consume(lambda message: None, max_fetch_interval=30)

    until(lambda: run.subscription.counts.completed == 100, 5)


def test_all_connections_may_die_and_nothing_is_lost(committed_orders, consume):
    ids = committed_orders.send_batch(list(range(300)))
    run = consume(lambda message: time.sleep(0.002), visibility_timeout=2)
    until(lambda: run.subscription.counts.settled)  # a consumer that cannot register ends

    for _ in range(5):
        before = run.subscription.counts.settled
        run_sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        until(lambda: run.subscription.counts.settled > before or len(outcomes()) == 300)  # noqa: B023
    until(lambda: len(outcomes()) == len(ids), 30)

    assert set(outcomes().values()) == {"COMPLETED"}


def test_a_drain_does_not_end_while_a_fetch_is_under_way(committed_orders, drain, monkeypatch):
    """The messages are leased in the database, and not yet in the buffer."""
    ids = committed_orders.send_batch([1, 2, 3], group="one")
    lease = reading.lease

    def slow(*args: Any, **options: Any) -> list[Delivery]:
        messages = lease(*args, **options)
        time.sleep(0.3)
        return messages

    monkeypatch.setattr(reading, "lease", slow)

    run = drain(lambda message: None)

    assert outcomes() == dict.fromkeys(ids, "COMPLETED")
    assert run.consumer.reason == "the queues are empty"


def test_more_of_a_group_is_fetched_when_its_followers_have_run(committed_orders, consume, looks):
    """There is no wait in between: an idle consumer's next poll is a minute away."""
    committed_orders.send_batch(range(20), group="one")

    run = consume(lambda message: None, min_fetch_interval=60, max_fetch_interval=60)

    until(lambda: run.subscription.counts.completed == 20)
    assert len(looks) < 20


def test_two_handlers_of_one_queue_are_refused(committed_orders):
    """The database may be given by either name."""
    handlers = [Handler("orders", lambda message: None, using=using) for using in (None, "default")]

    with pytest.raises(InvalidArgument, match=r"'orders' of database 'default' has two handlers"):
        Worker(handlers, Options())


# Several queues


def test_a_busy_queue_does_not_starve_a_quiet_one(committed, consume):
    order: list[str] = []
    for name in ("busy", "quiet"):
        Message.objects.create_queue(name)
    Message.objects.send_batch("busy", [1] * 2000)

    def work(message: Message) -> None:
        order.append(message.queue_name)

    run = consume(handlers=[Handler("busy", work), Handler("quiet", work)])
    until(lambda: len(order) > 20)
    Message.objects.send("quiet", 1)
    until(lambda: "quiet" in order)

    assert order.index("quiet") < 2000
    until(lambda: all(s.buffer or s.counts.settled for s in run.consumer.subscriptions))


def test_a_slow_queue_does_not_hold_up_a_fast_one(committed, consume, held):
    for name in ("slow", "fast"):
        Message.objects.create_queue(name)
    Message.objects.send_batch("slow", [1] * 50)

    consume(
        handlers=[
            Handler("slow", held.work, max_workers=2),
            Handler("fast", lambda message: None),
        ]
    )
    Message.objects.send_batch("fast", [1] * 50)

    until(lambda: len(outcomes("fast")) == 50)
    held.let_go()


def test_a_slow_queue_is_not_hoarded(committed_orders, consume):
    """With a known rate, the buffer holds at most two seconds' worth of messages."""
    committed_orders.send_batch(list(range(300)))

    run = consume(lambda message: time.sleep(0.3), max_workers=2)
    until(lambda: run.subscription.counts.completed >= 4)
    held = [row for row in live() if row[1] == "PROCESSING"]

    assert len(held) <= 40


# Queues that change


@pytest.mark.parametrize("locked", [False, True])
def test_a_paused_queue_is_left_alone_until_it_goes_on(committed, consume, settings, locked, looks):
    settings.PGQUEUE = {"CACHE_SECONDS": 0.05}
    queue = Message.objects.create_queue("orders")
    pause(queue, True)
    Message.objects.send("orders", 1)

    run = consume(lambda message: None, locked=locked, max_fetch_interval=0.1)
    until(lambda: run.subscription.buffer.plan.listening)
    looked = len(looks)
    until(lambda: len(looks) >= looked + 3)
    waiting = live()
    wake = Message.objects.resolve("orders").tables["wake"]
    told = run_sql(f"SELECT pg_sequence_last_value('{wake}')")
    pause(queue, False)

    assert [row[1] for row in waiting] == ["PENDING"]
    assert told != [(7,)]  # nobody sleeps, so sends do not notify
    until(lambda: run.subscription.counts.completed == 1)


def pause(queue: Queue, paused: bool) -> None:
    queue.paused = paused
    queue.save()


@pytest.mark.parametrize("locked", [False, True])
def test_a_quiet_process_ends_what_it_holds_and_fetches_nothing_until_it_is_woken(
    committed_orders, consume, held, locked, looks
):
    committed_orders.send(1)
    options = {"heartbeat": 0.05, "workers": 1}
    run = consume(held.work, locked=locked, max_fetch_interval=0.1, options=options)
    held.until_begun()

    Process.objects.update(quiet=True)
    until(lambda: run.subscription.quiet)
    held.let_go()
    until(lambda: run.subscription.counts.completed == 1)
    seen = len(looks)
    until(lambda: len(looks) >= seen + 2)  # the first may have begun before
    committed_orders.send(2)
    seen = len(looks)
    until(lambda: len(looks) >= seen + 3)
    waiting = live()
    Process.objects.update(quiet=False)

    assert [row[1] for row in waiting] == ["PENDING"]
    until(lambda: run.subscription.counts.completed == 2)


@pytest.mark.parametrize("locked", [False, True])
def test_a_queue_may_be_dropped_and_made_again_while_it_is_consumed(
    committed, consume, settings, locked
):
    settings.PGQUEUE = {"CACHE_SECONDS": 0.05}
    for name in ("orders", "mails"):
        Message.objects.create_queue(name)
    work = [Handler(name, lambda message: None, locked=locked) for name in ("orders", "mails")]
    run = consume(handlers=work)
    orders, mails = run.consumer.subscriptions
    Message.objects.send("orders", 1)
    until(lambda: orders.counts.completed == 1)

    Message.objects.drop_queue("orders")
    Message.objects.send("mails", 1)
    until(lambda: mails.counts.completed == 1)
    Message.objects.create_queue("orders")
    Message.objects.send("orders", 2)

    until(lambda: orders.counts.completed == 2)


def test_a_queue_dropped_under_a_running_handler_hurts_no_other_queue(
    committed_orders, consume, held
):
    committed_orders.send(1)
    run = consume(held.work)
    held.until_begun()
    Message.objects.drop_queue("orders")
    held.let_go()

    until(lambda: run.subscription.counts.lost == 1)
    run.stop()


# Locked


def test_a_locked_message_is_not_read_again_and_comes_back_uncounted(
    committed_orders, consume, held
):
    pk = committed_orders.send(1)
    run = consume(held.work, locked=True, max_workers=1)
    held.until_begun()
    others, seen = committed_orders.read(), live()
    held.let_go()
    until(lambda: run.subscription.counts.completed == 1)

    assert others == []
    assert seen == [(pk, "PENDING", 0, 0)]
    assert outcomes() == {pk: "COMPLETED"}


def test_a_locked_consumer_is_woken_and_keeps_due_times(committed_orders, consume, looks):
    run = consume(lambda message: None, locked=True, max_fetch_interval=30)
    until(lambda: listeners() == 1 and len(looks) >= 20)
    sent = time.monotonic()
    committed_orders.send(1)
    committed_orders.send(2, delay=1)

    until(lambda: run.subscription.counts.completed == 2)

    assert time.monotonic() - sent < 5


def test_a_locked_worker_looks_again_soon_after_a_notification(
    committed_orders, consume, monkeypatch
):
    """A message sent right after a notification causes none itself."""
    begun, finish = threading.Semaphore(0), threading.Event()
    waits: list[float] = []
    tick = LockedWorker.tick

    def note_wait(worker: LockedWorker) -> float:
        waits.append(tick(worker))
        return waits[-1]

    def work(message: Message) -> None:
        begun.release()
        finish.wait(30)

    monkeypatch.setattr(LockedWorker, "tick", note_wait)
    consume(work, locked=True, max_workers=2, max_fetch_interval=30)
    until(lambda: len(waits) > 2 and min(waits[-2:]) > 5)
    looked = len(waits)
    committed_orders.send("notified")
    until(lambda: len(waits) > looked)
    assert begun.acquire(timeout=10)

    send_untold(committed_orders, "next")

    assert begun.acquire(timeout=4)
    finish.set()


def test_a_locked_worker_counts_a_notification_until_it_falls_asleep(
    committed_orders, consume, monkeypatch
):
    """It handles a message in between, so the read that finds too few is not the one it woke."""
    heard: list[int | None] = []
    waits: list[float] = []
    fall_asleep = Subscription.fall_asleep

    def note(subscription: Subscription, sleep: Sleep) -> tuple[float, float]:
        heard.extend(sleep._heard)
        seconds, due = fall_asleep(subscription, sleep)
        waits.append(seconds)
        return seconds, due

    monkeypatch.setattr(Subscription, "fall_asleep", note)
    run = consume(lambda message: None, locked=True, max_workers=1, max_fetch_interval=30)
    until(lambda: waits and waits[-1] > 1 and listeners() == 1)
    asleep = len(waits)
    heard.clear()
    committed_orders.send(1)
    [(sender,)] = run_sql("SELECT pg_backend_pid()")

    until(lambda: run.subscription.counts.completed == 1 and len(waits) > asleep)

    assert heard == [sender]


def test_a_wake_up_between_a_loops_wait_and_its_next_tick_ends_the_next_wait():
    class Once(Loop):
        """Is woken when its first wait has timed out, just before it goes on."""

        def __init__(self) -> None:
            super().__init__("once", awake=LateEvent())
            self.ticks = 0

        def tick(self) -> float:
            self.ticks += 1
            if self.ticks == 3:
                self.stop()
            return 0.0 if self.ticks == 1 else 30.0

    class LateEvent(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            came = super().wait(timeout)
            if not timeout:
                self.set()
            return came

    loop = Once()
    loop.start()
    loop.join(10)

    assert loop.ticks == 3


def test_a_locked_row_that_is_overdue_is_not_polled_without_rest(
    committed_orders, consume, held, looks
):
    """Another consumer holds the row, in a transaction as long as its handler."""
    pk = committed_orders.send(1)
    [message] = committed_orders.read()
    committed_orders.set_vt(message, 0)
    consume(held.work, locked=True, max_workers=1)
    held.until_begun()
    consume(lambda message: None, max_fetch_interval=0.2)
    until(lambda: looks)
    time.sleep(1)
    counted = len(looks)
    held.let_go()
    until(lambda: pk in outcomes())

    assert counted < 30
