"""Handlers and their messages' outcomes, under each acknowledgement policy."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import (
    DatabaseError,
    DataError,
    IntegrityError,
    OperationalError,
    connection,
    transaction,
)

from django_pgqueue import signals
from django_pgqueue.acks import Ack, AckPolicy, Discard, Nack, Reject, Retry
from django_pgqueue.engine.settle import outcomes as settling
from django_pgqueue.models import ArchivedMessage, Message, Queue
from django_pgqueue.observability import logs
from django_pgqueue.retries import Constant, Exponential, Linear, NoRetry
from django_pgqueue.types import Receipt, Settled
from django_pgqueue.worker import connections as connections_module
from django_pgqueue.worker import execution
from django_pgqueue.worker.settler import Settler
from tests.app.models import Order
from tests.conftest import run_sql
from tests.leasing import lease
from tests.waiting import until
from tests.worker.consuming import elsewhere, errors, live, outcomes, steal, subscribed

pytestmark = pytest.mark.django_db(transaction=True)


def fail(message: Message) -> None:
    raise ValueError("no such order")


def nothing(message: Message) -> None:
    pass


@pytest.mark.parametrize("policy", sorted(set(AckPolicy) - {AckPolicy.MANUAL}))
def test_a_handler_that_returns_completes_its_message(committed_orders, drain, policy):
    pk = committed_orders.send({"order": 7})

    drain(nothing, ack_policy=policy)

    assert (outcomes(), live()) == ({pk: "COMPLETED"}, [])


ENDS = {
    "ACK": "COMPLETED",
    "ACK_FIRST": "COMPLETED",
    "NACK_ON_ERROR": "FAILED",
    "REJECT_ON_ERROR": "FAILED",
    "MANUAL": "FAILED",
    "TRANSACTIONAL": "FAILED",
}


async def afail(message: Message) -> None:
    await asyncio.sleep(0)
    fail(message)


@pytest.mark.parametrize(
    ("handler", "policy"),
    [*((fail, policy) for policy in ENDS), *((afail, policy) for policy in list(ENDS)[:-1])],
)
def test_a_handler_that_raises_ends_as_its_policy_says(committed_orders, drain, handler, policy):
    pk = committed_orders.send({"order": 7})

    drain(handler, ack_policy=policy, retry=NoRetry())

    assert outcomes() == {pk: ENDS[policy]}
    assert errors() == (["ValueError: no such order"] if ENDS[policy] == "FAILED" else [])


def test_nack_on_error_tries_again_until_it_works(committed_orders, drain):
    attempts: list[tuple[int, int]] = []

    def third_time(message: Message, context: Any) -> None:
        attempts.append((context.attempt, message.read_ct))
        if len(attempts) < 3:
            raise ValueError

    pk = committed_orders.send(1)

    drain(third_time, retry=Constant(seconds=0, max_attempts=5))

    assert attempts == [(1, 1), (2, 2), (3, 3)]
    assert outcomes() == {pk: "COMPLETED"}


@pytest.mark.parametrize(
    "retry",
    [
        Constant(seconds=0.01, max_attempts=3),
        Linear(first=0.01, step=0.01, max_attempts=3),
        Exponential(first=0.01, max_attempts=3),
        Exponential(first=0.01, jitter=True, max_attempts=3),
    ],
)
def test_max_attempts_counts_runs(committed_orders, drain, retry):
    ran: list[int] = []

    def failing(message: Message) -> None:
        ran.append(message.read_ct)
        raise ValueError

    pk = committed_orders.send(1)

    drain(failing, retry=retry)

    assert (ran, outcomes()) == ([1, 2, 3], {pk: "FAILED"})


def test_reject_on_beats_retry_on(committed_orders, drain):
    ran: list[int] = []

    def failing(message: Message) -> None:
        ran.append(message.id)
        raise (KeyError if message.body == "passing" and len(ran) < 3 else ValueError)(message.body)

    committed_orders.send_batch(["hopeless", "passing"])

    drain(
        failing,
        max_workers=1,
        retry=Constant(seconds=0, retry_on=(LookupError,), reject_on=(ValueError,)),
    )

    assert len(ran) == 3
    assert errors() == ["ValueError: hopeless", "ValueError: passing"]


@pytest.mark.parametrize(
    "retry",
    [
        Constant(seconds=0, retry_on=(OSError,)),
        Constant(seconds=0.2, max_total_delay=0.5),
    ],
)
def test_a_strategy_that_gives_up_ends_the_retries(committed_orders, drain, retry):
    committed_orders.send(1)

    drain(fail, retry=retry)

    assert errors() == ["ValueError: no such order"]


@pytest.mark.parametrize("policy", ["NACK_ON_ERROR", "REJECT_ON_ERROR", "ACK", "TRANSACTIONAL"])
@pytest.mark.parametrize("raised", [True, False])
def test_a_handler_may_ask_for_a_retry(committed_orders, drain, policy, raised):
    def once_more(message: Message) -> Any:
        if message.read_ct == 1:
            if raised:
                raise Retry(delay=0)
            return Retry(delay=0)
        return None

    pk = committed_orders.send(1)

    run = drain(once_more, ack_policy=policy, retry=NoRetry())

    assert outcomes() == {pk: "COMPLETED"}
    assert (run.subscription.counts.retried, run.subscription.counts.completed) == (1, 1)


@pytest.mark.parametrize("raised", [True, False])
@pytest.mark.parametrize(("outcome", "kept"), [(Reject("not ours"), ["not ours"]), (Discard(), [])])
def test_a_handler_may_reject_and_discard(committed_orders, drain, outcome, kept, raised):
    def end(message: Message) -> Any:
        if raised:
            raise outcome
        return outcome

    pk = committed_orders.send(1)

    drain(end)

    assert (errors(), live()) == (kept, [])
    assert Message.objects.filter(pk=pk).exists() is bool(kept)


def test_a_rejected_message_goes_to_the_dead_letter_queue(committed, drain):
    Message.objects.create_queue("dead")
    Message.objects.create_queue("orders", dead_letter_queue="dead")
    pk = Message.objects.send("orders", {"order": 7}, headers={"trace": "a"})

    drain(fail, retry=Constant(seconds=0, max_attempts=2))

    [dead] = Message.objects.read("dead")
    letter = dead.headers["x-dead-letter"]
    assert (dead.id, dead.body, dead.headers["trace"]) == (pk, {"order": 7}, "a")
    assert (letter["source"], letter["attempts"], letter["read_ct"]) == ("orders", 2, 2)
    assert letter["error"].startswith("ValueError: no such order")


def test_a_message_dies_whatever_its_headers_say_of_an_earlier_death(committed, drain):
    Message.objects.create_queue("dead")
    Message.objects.create_queue("orders", dead_letter_queue="dead")
    odd = [{"x-dead-letter": {"count": "many"}}, {"x-dead-letter": [1]}, {"x-dead-letter": 1.5}]
    for headers in odd:
        Message.objects.send("orders", 1, headers=headers)
    Message.objects.send("orders", 1, headers={"x-dead-letter": {"count": 2}})

    drain(fail, retry=NoRetry())

    dead = Message.objects.read("dead", qty=None)
    assert [m.headers["x-dead-letter"]["count"] for m in dead] == [1, 1, 1, 3]


# Outcomes set by the handler


def test_under_manual_the_handler_decides_the_outcome(committed_orders, drain):
    def say(message: Message) -> None:
        if message.body == "ack":
            message.ack()
        elif message.body == "reject":
            message.reject("bad")
        elif message.read_ct == 1:
            message.nack(delay=0.05)
        else:
            message.ack()

    ack, reject, nack = committed_orders.send_batch(["ack", "reject", "nack"])

    drain(say, ack_policy="MANUAL")

    assert outcomes() == {ack: "COMPLETED", reject: "FAILED", nack: "COMPLETED"}
    assert errors() == ["bad"]


def test_under_manual_a_message_without_an_outcome_is_retried_by_the_strategy(
    committed_orders, drain
):
    committed_orders.send(1)

    drain(nothing, ack_policy="MANUAL", retry=Constant(seconds=0, max_attempts=2))

    assert errors() == ["the handler returned without ack(), nack() or reject()"]


def test_the_first_outcome_that_a_handler_sets_counts(committed_orders, drain):
    def contradict(message: Message) -> None:
        message.ack()
        message.reject("no")
        raise ValueError

    pk = committed_orders.send(1)

    run = drain(contradict)

    assert outcomes() == {pk: "COMPLETED"}
    assert run.subscription.counts.settled == 1


def test_ack_first_archives_before_the_handler_runs_whatever_the_handler_says(
    committed_orders, drain
):
    seen: list[dict[int, str]] = []

    def ask(message: Message) -> None:
        seen.append(outcomes())
        raise Retry(delay=0)

    pk = committed_orders.send(1)

    run = drain(ask, ack_policy="ACK_FIRST")

    assert (seen, outcomes()) == ([{pk: "COMPLETED"}], {pk: "COMPLETED"})
    assert (run.subscription.counts.completed, run.subscription.counts.settled) == (1, 1)


@pytest.mark.parametrize("delay", [-1, "soon", float("nan"), True, 1e12])
def test_an_invalid_delay_fails_that_handler_only(committed_orders, drain, delay):
    def wrong(message: Message) -> None:
        if message.body == "wrong":
            message.nack(delay=delay)

    wrong_id, right_id = committed_orders.send_batch(["wrong", "right"])

    drain(wrong, retry=NoRetry())

    assert outcomes() == {wrong_id: "FAILED", right_id: "COMPLETED"}
    assert "a delay must be 0 to 1000000000 seconds" in errors()[0]


@pytest.mark.parametrize(
    "text", ["a NUL \x00 in it", "a lone surrogate \ud800 in it", "much " * 10_000]
)
@pytest.mark.parametrize("error", [ValueError, Reject])
def test_an_error_that_postgres_cannot_store_is_stored_escaped_or_cut(
    committed_orders, drain, text, error
):
    def odd(message: Message) -> None:
        raise error(text)

    pk = committed_orders.send(1)

    drain(odd, retry=NoRetry())

    assert outcomes() == {pk: "FAILED"}
    assert text[:5] in errors()[0]


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_a_strategy_that_raises_costs_a_delay_and_not_the_message(committed, drain, error):
    class Broken:
        def delay(self, attempt: int, elapsed: float) -> float | None:
            if attempt < 3:
                raise error
            return None

    Message.objects.create_queue("orders")
    Message.objects.send("orders", 1)

    drain(fail, retry=Broken(), visibility_timeout=0.2)

    assert errors() == ["ValueError: no such order"]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), MemoryError()])
def test_whatever_a_handler_raises_ends_its_message_and_not_the_consumer(
    committed_orders, drain, error
):
    def leave(message: Message) -> None:
        if message.body == "leave":
            raise error

    committed_orders.send_batch(["leave", "stay", "stay"])

    drain(leave, retry=Constant(seconds=0, max_attempts=2))

    assert sorted(outcomes().values()) == ["COMPLETED", "COMPLETED", "FAILED"]
    assert errors()[0].startswith(type(error).__name__)


# Transactional


def test_transactional_commits_row_and_ack_together(committed_orders, drain):
    inside: list[tuple[bool, int]] = []

    def save(message: Message) -> None:
        Order.objects.create(number=str(message.id))
        inside.append((connection.in_atomic_block, len(outcomes())))

    pk = committed_orders.send(1)

    drain(save, ack_policy="TRANSACTIONAL")

    assert inside == [(True, 0)]
    assert list(Order.objects.values_list("number", flat=True)) == [str(pk)]
    assert outcomes() == {pk: "COMPLETED"}


def test_transactional_rolls_the_row_of_a_failed_attempt_back(committed_orders, drain):
    def save(message: Message) -> None:
        Order.objects.create(number=str(message.read_ct))
        if message.read_ct < 3:
            raise ValueError

    committed_orders.send(1)

    drain(save, ack_policy="TRANSACTIONAL", retry=Constant(seconds=0))

    assert list(Order.objects.values_list("number", flat=True)) == ["3"]


def test_transactional_survives_a_query_that_breaks_the_transaction(committed_orders, drain):
    def break_it(message: Message) -> None:
        Order.objects.create(number="1")
        if message.read_ct == 1:
            with pytest.raises(DatabaseError), connection.cursor() as cursor:
                cursor.execute("SELECT 1/0")

    pk = committed_orders.send(1)

    drain(break_it, ack_policy="TRANSACTIONAL", retry=Constant(seconds=0))

    assert outcomes() == {pk: "COMPLETED"}
    assert Order.objects.count() == 1


def test_transactional_rolls_everything_back_when_the_lease_was_lost(committed_orders, consume):
    stolen: list[int] = []

    def save(message: Message) -> None:
        Order.objects.create(number=str(message.read_ct))
        if not stolen:
            stolen.extend(steal(message))

    pk = committed_orders.send(1)

    run = consume(save, ack_policy="TRANSACTIONAL", max_workers=1)
    until(lambda: run.subscription.counts.lost == 1)
    rows = Order.objects.count()
    run.stop()

    assert (stolen, rows) == ([pk], 0)
    assert [(pk, 2)] == [(row[0], row[2]) for row in live()]


@pytest.mark.parametrize("how", ["complete", "fail"])
def test_transactional_rolls_everything_back_when_its_delivery_was_settled_before(
    committed_orders, drain, how
):
    pk = committed_orders.send({"order": 7})

    def place(message: Message) -> None:
        Order.objects.create(number=7)
        settled = {message.receipt: "by another"} if how == "fail" else [message.receipt]
        elsewhere(lambda: getattr(committed_orders, how)(settled))

    drain(place, ack_policy="TRANSACTIONAL")

    assert not Order.objects.exists()
    [done] = ArchivedMessage.objects.all()
    assert (done.pk, done.attempts) == (pk, 1)


def test_transactional_batch_gives_the_others_back_when_one_lease_was_lost(
    committed_orders, consume
):
    stolen: list[int] = []

    def save(messages: list[Message]) -> None:
        for message in messages:
            Order.objects.create(number=str(message.id))
        if not stolen:
            stolen.extend(steal(messages[0]))

    first, *others = committed_orders.send_batch([1, 2, 3])

    run = consume(save, ack_policy="TRANSACTIONAL", batch=True, max_workers=1)
    until(lambda: len(outcomes()) == 2)
    run.stop()

    assert stolen == [first]
    assert sorted(outcomes()) == others
    assert sorted(Order.objects.values_list("number", flat=True)) == [str(pk) for pk in others]


def test_transactional_rolls_back_an_outcome_set_before_an_error(committed_orders, drain):
    def say_and_fail(message: Message) -> None:
        message.ack()
        raise ValueError("after all")

    committed_orders.send(1)

    drain(say_and_fail, ack_policy="TRANSACTIONAL", retry=NoRetry())

    assert errors() == ["ValueError: after all"]


# Hooks of on_commit


def fail_in_a_hook(message: Message) -> None:
    Order.objects.create(number=str(message.id))

    def hook() -> None:
        raise ValueError("no mail server")

    transaction.on_commit(hook)


@pytest.mark.parametrize("mode", [{"locked": True}, {"ack_policy": "TRANSACTIONAL"}], ids=str)
def test_a_hook_that_raises_after_the_commit_is_logged_as_what_it_is(
    committed_orders, drain, caplog, mode
):
    pk = committed_orders.send(1)

    run = drain(fail_in_a_hook, **mode)

    assert list(Order.objects.values_list("number", flat=True)) == [str(pk)]
    assert outcomes() == {pk: "COMPLETED"}
    assert (run.subscription.counts.retried, run.subscription.counts.completed) == (0, 1)
    [record] = [each for each in caplog.records if each.levelno >= logging.WARNING]
    line = f"message {pk} is done, and its transaction committed. Then a hook of on_commit failed"
    assert line in record.getMessage()
    assert record.getMessage().endswith("ValueError: no mail server")


def test_a_hook_that_raises_a_conflict_does_not_run_the_handler_again(committed_orders, drain):
    ran: list[int] = []

    def work(message: Message) -> None:
        ran.append(message.id)
        transaction.on_commit(lambda: run_sql("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$"))

    pk = committed_orders.send(1)

    drain(work, ack_policy="TRANSACTIONAL")

    assert (ran, outcomes()) == ([pk], {pk: "COMPLETED"})


# Work that a handler's own transaction has rolled back


def swallow_an_error(message: Message) -> None:
    with suppress(IntegrityError):
        Order.objects.create(pk=1, number="again")


def ask_for_a_rollback(message: Message) -> None:
    transaction.set_rollback(True)


def fail_in_an_inner_block(message: Message) -> None:
    with suppress(ValueError), transaction.atomic(savepoint=False):
        raise ValueError


def swallow_an_error_of_plain_sql(message: Message) -> None:
    with suppress(DatabaseError):
        run_sql("SELECT 1/0")


ROLLED_BACK = [
    swallow_an_error,
    ask_for_a_rollback,
    fail_in_an_inner_block,
    swallow_an_error_of_plain_sql,
]


@pytest.mark.parametrize("then", ROLLED_BACK, ids=[each.__name__ for each in ROLLED_BACK])
@pytest.mark.parametrize("mode", [{"locked": True}, {"ack_policy": "TRANSACTIONAL"}], ids=str)
def test_a_handler_whose_work_was_rolled_back_is_a_failed_attempt_that_says_why(
    committed_orders, drain, mode, then
):
    Order.objects.create(pk=1, number="first")

    def work(message: Message) -> None:
        Order.objects.create(number="lost")
        then(message)

    pk = committed_orders.send(1)

    drain(work, retry=NoRetry(), **mode)

    assert list(Order.objects.values_list("number", flat=True)) == ["first"]
    assert outcomes() == {pk: "FAILED"}
    assert "the handler's transaction was marked for rollback" in errors()[0]
    assert [each.attempt for each in committed_orders.attempts(pk)] == [1]


def test_the_error_of_a_rolled_back_transaction_names_the_error_that_the_handler_caught(
    committed_orders, drain
):
    Order.objects.create(pk=1, number="first")
    pk = committed_orders.send(1)

    drain(swallow_an_error, locked=True, retry=NoRetry())

    [attempt] = committed_orders.attempts(pk)
    assert "IntegrityError" in attempt.traceback


CONFLICTS = {"a serialization failure": "40001", "a deadlock": "40P01"}


@pytest.mark.parametrize("code", CONFLICTS.values(), ids=CONFLICTS)
def test_a_transactional_handler_in_conflict_is_tried_again_and_no_attempt_counts(
    committed_orders, drain, code
):
    ran: list[tuple[int, int]] = []

    def save(message: Message, context: Any) -> None:
        Order.objects.create(number=str(len(ran)))
        ran.append((context.attempt, context.deliveries))
        if len(ran) < 3:
            run_sql(f"DO $$ BEGIN RAISE SQLSTATE '{code}'; END $$")

    pk = committed_orders.send(1)

    drain(save, ack_policy="TRANSACTIONAL", retry=NoRetry())

    assert (ran, outcomes()) == ([(1, 1)] * 3, {pk: "COMPLETED"})
    assert list(Order.objects.values_list("number", flat=True)) == ["2"]


def test_a_conflict_that_does_not_end_is_an_error_of_the_handler(committed_orders, drain):
    ran: list[int] = []

    def conflict(message: Message) -> None:
        ran.append(message.id)
        run_sql("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$")

    pk = committed_orders.send(1)

    drain(conflict, ack_policy="TRANSACTIONAL", retry=NoRetry())

    assert (len(ran), outcomes()) == (5, {pk: "FAILED"})


def test_a_handler_that_never_ran_costs_neither_delivery_nor_attempt(
    committed_orders, consume, monkeypatch
):
    """Simulates a pool without a free connection."""
    ran: list[tuple[int, int]] = []
    tries: list[int] = []

    def begin(using: str) -> Any:
        tries.append(1)
        if len(tries) <= 3:
            raise OperationalError("couldn't get a connection after 30.00 sec")
        return transaction.atomic(using=using)

    monkeypatch.setattr(execution, "transaction", SimpleNamespace(atomic=begin))
    pk = committed_orders.send(1)

    run = consume(
        lambda message, context: ran.append((context.attempt, context.deliveries)),
        ack_policy="TRANSACTIONAL",
        max_deliveries=2,
        retry=NoRetry(),
    )

    until(lambda: outcomes() == {pk: "COMPLETED"})
    assert ran == [(1, 1)]
    assert run.subscription.report()["retried"] == 0


def test_a_pool_that_is_smaller_than_the_workers_is_warned_of(
    committed_orders, drain, monkeypatch, caplog
):
    monkeypatch.setattr(connections_module, "pool_size", lambda alias: 2)

    drain(nothing, max_workers=8)

    [warning] = [each.getMessage() for each in caplog.records if "pool" in each.getMessage()]
    assert warning.startswith("the pool of database 'default' has 2 connections for 8 workers")
    assert warning.endswith("Set max_size to 12 or more")


# Counts and log lines


def test_a_message_delivered_max_deliveries_times_counts_as_failed(committed_orders, drain, caplog):
    pk = committed_orders.send(1)

    run = drain(fail, retry=Constant(seconds=0), max_deliveries=2)

    assert (outcomes(), run.subscription.report()["failed"]) == ({pk: "FAILED"}, 1)
    lines = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert lines == [
        f"orders: message {pk} failed for good: it was delivered 2 times, which is the maximum"
    ]


def test_a_handlers_error_is_logged_with_its_traceback_and_is_a_retrys_reason(
    committed_orders, drain, caplog, events
):
    committed_orders.send(1)

    drain(fail, retry=Constant(seconds=0, max_attempts=2))

    logged = [(each.levelname, str(each.exc_info[1])) for each in caplog.records if each.exc_info]
    assert logged == [("WARNING", "no such order"), ("ERROR", "no such order")]
    [again] = [told["outcomes"] for name, told in events if name == "messages_retried"]
    assert again[0].reason.startswith("ValueError: no such order")


def test_control_characters_of_an_error_are_escaped_in_the_log(committed_orders, drain, caplog):
    def color(message: Message) -> None:
        raise ValueError("\x1b[31mred\rforged")

    committed_orders.send(1)

    drain(color, retry=NoRetry())

    [record] = [each for each in caplog.records if each.levelname == "ERROR"]
    assert record.getMessage().endswith("ValueError: \\x1b[31mred\\rforged")
    assert "\x1b" not in logs.Formatter().format(record)


# Written together


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_outcomes_written_before_the_database_failed_are_not_written_again(orders, monkeypatch, at):
    """One outcome cannot be stored, so each is written separately; then another kind fails."""
    orders.send_batch([1, 2, 3])
    subscription, settler = subscribed(), Settler(0)
    done, bad, again = lease(subscription.queue, vt=60, qty=3)
    calls = []

    def fragile(operation: Callable[..., Settled]) -> Callable[..., Settled]:
        def run(queue: Queue, receipts: Collection[Receipt], *args: Any, **options: Any) -> Settled:
            calls.extend([receipts] if receipts else [])
            if receipts and len(calls) == at:
                raise OperationalError("the server is gone")
            if bad.receipt in receipts:
                raise DataError("too long")
            return operation(queue, receipts, *args, **options)

        return run

    for name in ("_complete", "retry"):
        monkeypatch.setattr(settling, name, fragile(getattr(settling, name)))
    for message, outcome in ((done, Ack()), (bad, Ack()), (again, Nack(0.0))):
        settler.put(subscription, message, outcome)

    with pytest.raises(OperationalError):
        settler.flush()
    settler.flush()

    counts = subscription.report()
    assert (counts["completed"], counts["retried"], counts["lost"]) == (1, 1, 1)
    assert outcomes() == {done.id: "COMPLETED"}
    assert not subscription.unwritten


def test_a_completed_message_is_a_line_at_info(committed_orders, drain, caplog):
    caplog.set_level(logging.INFO)
    pk = committed_orders.send(1)

    drain(lambda message: None)

    [record] = [each for each in caplog.records if "completed" in each.getMessage()]
    assert (record.name, record.levelname) == ("django_pgqueue", "INFO")
    assert record.getMessage() == f"orders: message {pk} completed"
    assert (record.queue, record.message_id) == ("orders", pk)  # type: ignore[attr-defined]


def test_messages_completed_together_share_a_line(caplog):
    caplog.set_level(logging.INFO)

    signals.messages_completed.send("orders", messages=[Message(id=1), Message(id=2)])

    assert [each.getMessage() for each in caplog.records] == ["orders: completed 2 messages"]


@pytest.mark.parametrize("counts_shown", [False, True])
def test_the_log_beside_the_counts_of_a_terminal_leaves_out_what_is_completed(
    monkeypatch, counts_shown
):
    root, out = logging.getLogger(), io.StringIO()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(logs.logger, "level", logging.NOTSET)
    monkeypatch.setattr("sys.stderr", out)

    logs.configure_if_unset(counts_shown=counts_shown)
    signals.messages_completed.send("orders", messages=[Message(id=7)])
    signals.messages_discarded.send("orders", messages=[Message(id=8)])
    logs.logger.manager._clear_cache()

    assert "discarded 1 messages" in out.getvalue()
    assert ("INFO django_pgqueue: orders: message 7 completed" in out.getvalue()) != counts_shown
