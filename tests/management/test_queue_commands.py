"""The commands on queues: to list, make, alter, purge and drop them."""

from __future__ import annotations

import datetime as dt
import inspect
import json
import threading
import time
from collections.abc import Callable

import pytest
from django.core.management import CommandError
from django.db import OperationalError, connection, connections
from django.test.utils import CaptureQueriesContext

from django_pgqueue import queue
from django_pgqueue.management.progress_bar import ProgressBar
from django_pgqueue.models import Batch, Message, Queue
from django_pgqueue.queues.manager import MessageManager
from tests.management.calling import call, call_json, type_in


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Do a step in each pause of ``--watch``, and press Ctrl-C in the last one."""
    sleep, command = time.sleep, threading.current_thread()

    def during(*steps: Callable[[], object]) -> None:
        left = list(steps)

        def pause(seconds: float) -> None:
            if threading.current_thread() is not command:
                sleep(seconds)  # another test's leftover thread
            elif not left:
                raise KeyboardInterrupt
            else:
                left.pop(0)()

        monkeypatch.setattr(time, "sleep", pause)

    return during


# Queues


def test_every_queue_is_a_line_with_its_counts_and_ages(orders):
    Message.objects.create_queue("mails", dead_letter_queue="orders", unlogged=True)
    Queue.objects.filter(name="mails").update(paused=True)
    orders.send_batch([1, 2, 3])
    orders.send(4, delay=60)
    orders.read()

    headings, mails, held = call("pgqueue_queues").out.splitlines()

    assert headings.split()[:4] == ["queue", "length", "ready", "in"]
    assert held.split()[:7] == ["orders", "4", "2", "1", "1", "0", "2"]
    assert mails.endswith("paused, unlogged, dead letters to orders")
    assert mails.split()[:9] == ["mails", *"000000", "-", "-"]


@pytest.mark.parametrize(
    ("column", "options"), [("ready", {}), ("delayed", {"delay": 60}), ("waiting", {"group": "g"})]
)
def test_an_estimate_is_marked(orders, settings, column, options):
    settings.PGQUEUE = {"EXACT_COUNT_LIMIT": 5}
    orders.send_batch(range(20), **options)

    headings, held = call("pgqueue_queues").out.splitlines()

    end = headings.index(column) + len(column)
    assert held[:end].split()[-2] == "≈"


def test_the_same_can_be_had_as_json(orders):
    orders.send(1)

    [found] = call_json("pgqueue_queues", "orders")

    assert (found["queue_name"], found["ready"], found["archived"]) == ("orders", 1, 0)
    assert (found["paused"], found["dead_letter_queue"], found["exact"]) == (False, None, True)
    assert 0 <= found["oldest_age"] < 60


def test_a_queue_with_open_batches_says_how_many_of_their_members_have_ended(orders):
    Message.objects.create_queue("mails")
    with orders.batch(name="news") as running:
        running.send_batch([*range(1200)])
    taken = orders.open_batch()
    with orders.batch() as done:
        pass
    orders.archive(orders.read(qty=5))
    Batch.objects.count_members([running.pk, done.pk], using="default")

    _headings, mails, held = call("pgqueue_queues").out.splitlines()
    [of_mails, of_orders] = call_json("pgqueue_queues")

    assert held.endswith("2 batches, 5 of 1,200 ended")
    assert "batch" not in mails
    assert "batches" not in of_mails
    assert of_orders["batches"] == [
        {"id": running.pk, "name": "news", "outcome": "running", "members": 1200, "ended": 5},
        {"id": taken.pk, "name": "", "outcome": "open", "members": 0, "ended": 0},
    ]


def test_open_batches_of_all_queues_take_one_query(orders):
    for number in range(3):
        Message.objects.create_queue(f"mails-{number}")
        queue(f"mails-{number}").open_batch()
        orders.open_batch()

    with CaptureQueriesContext(connection) as asked:
        call("pgqueue_queues")

    assert sum("pgqueue_batch" in each["sql"] for each in asked) == 1


def test_only_the_queues_named_are_shown(orders):
    Message.objects.create_queue("mails")

    assert [found["queue_name"] for found in call_json("pgqueue_queues", "MAILS")] == ["mails"]


def test_without_queues_it_says_how_to_make_one(db):
    assert "manage.py pgqueue_create NAME" in call("pgqueue_queues").out


def watch(*arguments: str, terminal: bool = False) -> str:
    """Watch until Ctrl-C, and return what was printed on stdout."""
    with pytest.raises(SystemExit) as ended:
        call("pgqueue_queues", "--watch", *arguments, terminal=terminal)

    assert ended.value.code == 130
    return str(ended.value.said.out)  # type: ignore[attr-defined]


def test_watching_looks_again_until_ctrl_c_and_ends_with_its_exit_code(orders, looks):
    looks(lambda: orders.send(1))

    first, second = watch("--json").splitlines()

    assert (json.loads(first)[0]["ready"], json.loads(second)[0]["ready"]) == (0, 1)


def test_watching_draws_over_the_last_look_on_a_terminal(orders, looks, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("LINES", "4")
    for number in range(5):
        Message.objects.create_queue(f"queue-with-a-longer-name-{number}")
    looks(lambda: None)

    cleared, first, second = watch("1", terminal=True).split("\x1b[H")

    assert cleared == "\x1b[2J"
    lines = first.removesuffix("\x1b[J").replace("\x1b[K", "").splitlines()
    assert len(lines) == 3  # the time, the headings, and the number of hidden rows
    assert lines[-1] == "... and 6 more"
    assert max(map(len, lines)) < 30
    assert second.count("\n") == first.count("\n") + 1  # Ctrl-C adds a newline


def test_a_queue_that_is_made_meanwhile_is_shown(db, monkeypatch):
    resolve = Message.objects.resolve

    def resolve_late(queue: str | Queue, alias: str | None = None) -> Queue:
        if isinstance(queue, str):
            Message.objects.create_queue(queue)
        return resolve(queue, alias)

    monkeypatch.setattr(Message.objects, "resolve", resolve_late)

    assert "orders" in call("pgqueue_queues", "orders").out


def test_watching_survives_a_database_that_is_away(orders, looks, monkeypatch):
    def away(manager: MessageManager) -> None:
        monkeypatch.setattr(MessageManager, "metrics_all", measure)
        raise OperationalError("connection refused\nand more")

    measure = inspect.getattr_static(MessageManager, "metrics_all")
    monkeypatch.setattr(MessageManager, "metrics_all", away)
    closed: list[bool] = []
    monkeypatch.setattr(connections["default"], "close", lambda: closed.append(True))
    looks(lambda: None)

    out = watch()

    assert closed
    assert "No answer from the database: connection refused\n" in out
    assert "orders" in out


@pytest.mark.parametrize(
    ("pause", "words"),
    [
        *((pause, "seconds and a day") for pause in ("0", "2d")),
        *((pause, "is not a duration: write 30") for pause in ("often", "nan", "1e9")),
    ],
)
def test_watching_needs_a_pause_that_makes_sense(db, pause, words):
    with pytest.raises(CommandError, match=words):
        call("pgqueue_queues", "--watch", pause)


# Create


def test_times_may_have_units(db):
    call("pgqueue_create", "orders", "--visibility-timeout", "1.5m", "--retention", "30d")

    queue = Queue.objects.get(name="orders")
    assert queue.visibility_timeout == 90
    assert queue.retention == dt.timedelta(days=30)


def test_a_queue_is_made_with_every_setting(db):
    Message.objects.create_queue("dead")

    made = call_json(
        "pgqueue_create",
        "orders",
        *("--visibility-timeout", "60", "--max-deliveries", "5", "--dead-letter-queue", "dead"),
        *("--retention", "30d", "--partition-interval", "1d", "--unique-window", "10m"),
        *("--age-limit", "2h", "--unlogged", "--no-notify", "--limit", "20", "--rate", "100/s"),
        *("--burst", "10", "--group-rate", "30/m", "--group-burst", "3"),
    )

    queue = Queue.objects.get(name="orders")
    assert (queue.visibility_timeout, queue.max_deliveries) == (60, 5)
    assert queue.dead_letter_queue == Queue.objects.get(name="dead")
    assert (queue.retention, queue.partition_interval) == (dt.timedelta(30), dt.timedelta(1))
    assert queue.unique_window == dt.timedelta(minutes=10)
    assert queue.age_limit == dt.timedelta(hours=2)
    assert (queue.limit, queue.rate, queue.burst, queue.group_limit) == (20, "100/s", 10, None)
    assert (queue.group_rate, queue.group_burst) == ("30/m", 3)
    assert (queue.unlogged, queue.notify) == (True, False)
    assert (made["created"], made["dead_letter_queue"], made["retention"]) == (True, "dead", 2592e3)


def test_without_options_it_has_the_defaults(db):
    assert call("pgqueue_create", "orders").out == "Made queue 'orders'.\n"

    queue = Queue.objects.get(name="orders")
    assert (queue.visibility_timeout, queue.notify, queue.unlogged) == (30, True, False)


def test_an_existing_queue_stays_and_the_differing_settings_are_named(orders):
    arguments = ["pgqueue_create", "Orders", "--max-deliveries", "5", "--visibility-timeout", "30"]

    said = call(*arguments, "--burst", "3", "--no-notify")
    found = call_json(*arguments, "--database", "default")

    assert said.out == "Queue 'orders' exists already.\n"
    assert said.err == (
        "queue 'orders' exists with --max-deliveries 20 --burst none --notify; pgqueue_create does "
        "not change it: manage.py pgqueue_alter orders --max-deliveries 5 --burst 3 --no-notify\n"
    )
    assert (found["created"], found["differs"]) == (False, ["max_deliveries"])
    assert Queue.objects.get(name="orders").max_deliveries == 20


def test_an_existing_queue_with_the_same_settings_is_not_worth_a_note(db):
    call("pgqueue_create", "orders", "--limit", "5", "--retention", "1m")

    assert call("pgqueue_create", "orders", "--retention", "60", "--limit", "5").err == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["or ders"], "'or ders' is not a queue name"),
        (["mails", "--visibility-timeout", "0"], "'0' must be a whole number of seconds"),
        (["mails", "--visibility-timeout", "1.5"], "such as 30, 30s, 10m or 2h"),
        (["mails", "--retention", "soon"], "'soon' is not a duration: write 30"),
        (["mails", "--rate", "often"], "rate must be a number of messages in a second, minute"),
        (["mails", "--burst", "5"], "burst needs a rate"),
        (["orders", "--unlogged"], "exists with unlogged=False, not True"),
    ],
)
def test_an_invalid_queue_is_not_created(orders, arguments, words):
    with pytest.raises(CommandError, match=words):
        call("pgqueue_create", *arguments)

    assert Queue.objects.count() == 1


# Alter


def test_the_named_settings_are_changed_and_the_others_stay(orders):
    Message.objects.create_queue("dead")
    Queue.objects.filter(name="orders").update(rate="10/s", retention=dt.timedelta(days=1))

    said = call(
        "pgqueue_alter",
        "Orders",
        *("--limit", "5", "--rate", "none", "--retention", "2d", "--dead-letter-queue", "dead"),
        *("--paused", "--max-deliveries", "20"),
    )

    assert said.out == (
        "Changed queue 'orders': dead_letter_queue from none to dead, retention from 86400 to "
        "172800, limit from none to 5, rate from 10/s to none, paused from False to True.\n"
    )
    queue = Queue.objects.get(name="orders")
    assert (queue.limit, queue.rate, queue.retention) == (5, None, dt.timedelta(days=2))
    assert (queue.paused, queue.notify, queue.visibility_timeout) == (True, True, 30)
    assert queue.dead_letter_queue == Queue.objects.get(name="dead")


def test_altering_again_changes_nothing_and_says_so(orders):
    arguments = ["pgqueue_alter", "orders", "--limit", "5", "--no-notify"]

    first, second = call_json(*arguments), call_json(*arguments)

    assert (first["queue"], first["limit"], first["notify"]) == ("orders", 5, False)
    assert (first["changed"], second["changed"]) == (["limit", "notify"], [])
    assert call(*arguments).out == "Queue 'orders' has these settings already.\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "pass a setting to change"),
        (["--limit", "0"], "'0' must be a whole number, 1 or more"),
        (["--max-deliveries", "none"], "'none' must be a whole number, 1 or more"),
        (["--burst", "5"], "burst needs a rate"),
        (["--rate", "often"], "rate must be a number of messages in a second"),
        (["--dead-letter-queue", "Orders"], "the dead-letter queues would form a cycle"),
        (["--partition-interval", "1d"], "unrecognized arguments: --partition-interval"),
        (["--unlogged"], "unrecognized arguments: --unlogged"),
    ],
)
def test_an_invalid_change_is_refused(orders, arguments, words):
    with pytest.raises(CommandError, match=words):
        call("pgqueue_alter", "orders", *arguments)


# Purge


def test_purge_asks_and_deletes_what_is_in_the_queue(orders, monkeypatch):
    orders.send_batch([1, 2])
    orders.archive(orders.read())
    type_in(monkeypatch, "yes\n")

    said = call("pgqueue_purge", "orders")

    assert (
        said.err == "Delete 1 message of queue 'orders' in database 'default' for good? Type yes: "
    )
    assert said.out == "Deleted 1 message of queue 'orders'.\n"
    assert (orders.metrics().length, orders.metrics().archived) == (0, 1)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        *((answer, "Nothing was purged") for answer in ("no\n", "\n", "y\n")),
        ("", r"nothing was changed\. Add --no-input"),
    ],
)
def test_any_other_answer_and_none_purge_nothing(orders, monkeypatch, answer, words):
    orders.send(1)
    type_in(monkeypatch, answer)

    with pytest.raises(CommandError, match=words):
        call("pgqueue_purge", "orders")

    assert orders.metrics().length == 1


def test_purge_without_input_asks_nothing(orders):
    orders.send_batch([1, 2])

    assert call_json("pgqueue_purge", "orders", "--no-input") == {"queue": "orders", "purged": 2}


def test_purge_shows_how_far_it_is_and_after_ctrl_c_what_is_done(orders, monkeypatch):
    monkeypatch.setattr("django_pgqueue.engine.settle.settling.PURGE_BATCH", 2)
    orders.send_batch([1, 2, 3, 4, 5])

    def interrupt(progress: ProgressBar, done: int, total: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ProgressBar, "show", interrupt)
        with pytest.raises(CommandError, match=r"4 messages deleted\. Run the command again for"):
            call("pgqueue_purge", "orders", "--no-input")
    said = call("pgqueue_purge", "orders", "--no-input", terminal=True)

    assert "1 of 1 deleted" in said.err
    assert said.out == "Deleted 1 message of queue 'orders'.\n"


# Drop


def test_drop_wants_the_name_typed(orders, monkeypatch):
    orders.send(1)
    type_in(monkeypatch, "orders\n")

    said = call("pgqueue_drop", "orders")

    assert (
        "has 1 message, and in its archive 0 messages. All of them are deleted for good."
        in said.err
    )
    assert said.out == "Dropped queue 'orders'.\n"
    assert not Queue.objects.exists()


def test_another_name_or_yes_drops_nothing(orders, monkeypatch):
    type_in(monkeypatch, "yes\n")

    with pytest.raises(CommandError, match="Nothing was dropped"):
        call("pgqueue_drop", "orders")

    assert Queue.objects.exists()


def test_drop_without_input_asks_nothing(orders):
    assert call_json("pgqueue_drop", "orders", "--no-input") == {"queue": "orders", "dropped": True}
    assert not Queue.objects.exists()


def test_a_dead_letter_queue_in_use_is_not_dropped(orders):
    Message.objects.create_queue("mails", dead_letter_queue="orders")

    with pytest.raises(CommandError, match="is the dead-letter queue of mails: set"):
        call("pgqueue_drop", "orders", "--no-input")

    assert Queue.objects.count() == 2
