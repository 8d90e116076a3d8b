"""A wait beside its signal and its timeout, in a forced order."""

from __future__ import annotations

import pytest

from django_pgqueue.models import Message, PendingWait, queue
from tests.actors import begin, commit, execute, rollback
from tests.flows.doing import send_signal, wait
from tests.subscriptions.gates import blocked

pytestmark = pytest.mark.django_db(transaction=True)

LEVELS = pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])


@pytest.fixture
def leased(committed_orders) -> Message:
    committed_orders.send({})
    return committed_orders.read()[0]


def timed_out_wait(message: Message) -> Message:
    """The delivery after the timeout of a wait, which has not come to its line yet."""
    assert wait(message, 0) == "waits"
    [again] = queue("orders").read()
    return again


@pytest.mark.parametrize("end", [commit, rollback], ids=["commit", "rollback"])
def test_a_wait_that_begins_beside_a_signal_waits_for_its_transaction(actors, leased, end):
    worker, sender = actors(2)
    sender.do(begin)
    assert sender.do(send_signal, "yes") == 0

    waiting = worker.start(wait, leased)
    blocked(waiting)
    sender.do(end)

    assert waiting.result(10) == ("yes" if end is commit else "waits")
    assert PendingWait.objects.exists() is (end is rollback)


def test_a_signal_that_begins_beside_a_wait_finds_it(actors, gate, leased):
    worker, sender = actors(2)
    closed = gate("pgqueue_wait", "INSERT", "AFTER")
    closed.stops(worker)

    waiting = worker.start(wait, leased)
    blocked(waiting)
    sending = sender.start(send_signal, "yes")
    blocked(sending, 2)
    closed.open()

    assert waiting.result(10) == "waits"
    assert sending.result(10) == 1
    [again] = queue("orders").read()
    assert wait(again) == "yes"


@LEVELS
def test_a_signal_whose_snapshot_is_older_than_a_wait_finds_it_or_fails(actor, leased, level):
    actor.do(begin)
    actor.do(execute, f"SET TRANSACTION ISOLATION LEVEL {level}")
    actor.do(execute, "SELECT count(*) FROM pgqueue_wait")
    assert wait(leased) == "waits"

    if level == "READ COMMITTED":
        assert actor.do(send_signal, "yes") == 1
        actor.do(commit)
        [again] = queue("orders").read()
        assert wait(again) == "yes"
    else:
        with pytest.raises(Exception, match="could not serialize access"):
            actor.do(send_signal, "yes")
        actor.do(rollback)
        assert send_signal("yes") == 1


@pytest.mark.parametrize("end", [commit, rollback], ids=["commit", "rollback"])
def test_a_timeout_beside_a_signal_waits_for_its_transaction(actors, leased, end):
    worker, sender = actors(2)
    late = timed_out_wait(leased)
    sender.do(begin)
    assert sender.do(send_signal, "yes") == 1

    waiting = worker.start(wait, late)
    blocked(waiting)
    sender.do(end)

    outcome = "yes" if end is commit else "timed out"
    assert waiting.result(10) == outcome
    queue("orders").set_vt(late.id, 0)
    [again] = queue("orders").read()
    assert wait(again) == outcome
    assert not PendingWait.objects.exists()


def test_a_signal_beside_a_timeout_comes_too_late(actors, gate, leased):
    worker, sender = actors(2)
    late = timed_out_wait(leased)
    closed = gate("pgqueue_step", "INSERT", "AFTER")
    closed.stops(worker)

    waiting = worker.start(wait, late)
    blocked(waiting)
    sending = sender.start(send_signal, "yes")
    blocked(sending, 2)
    closed.open()

    assert waiting.result(10) == "timed out"
    assert sending.result(10) == 0
    queue("orders").set_vt(late.id, 0)
    [again] = queue("orders").read()
    assert wait(again) == "timed out"
    queue("orders").send({})
    [later] = queue("orders").read(qty=9)
    assert wait(later) == "yes"


def test_a_wait_that_deadlocks_with_a_cancel_and_a_signal_is_tried_again(actors, leased):
    worker, view = actors(2)
    view.do(begin)
    view.do(execute, "SET LOCAL deadlock_timeout = '1min'")  # so that the worker's wait is ended
    view.do(execute, f"SELECT FROM pgqueue_deferred WHERE id = {leased.id} FOR UPDATE")
    waiting = worker.start(wait, leased)
    blocked(waiting)

    assert view.do(send_signal, "yes") == 0
    view.do(commit)
    assert waiting.result(10) == "yes"
