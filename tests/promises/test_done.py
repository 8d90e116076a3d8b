"""Effects and acks, while handlers fail, connections break and processes die."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from django_pgqueue.models import Message, queue
from tests.app.models import Order
from tests.conftest import run_sql
from tests.promises.consumers import handler_of
from tests.promises.draining import is_empty
from tests.promises.full_speed import FullSpeed
from tests.promises.pages import promise
from tests.worker.test_processes import url
from tests.working.running import runconsumer

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]

ONE_COMMIT = (
    'in the queues\' database | ack_policy="TRANSACTIONAL", or locked=True | exactly once: the '
    "effect and the ack are one commit"
)
BY_ID = (
    "in the queues' database | another policy, and writes under a unique key of the message "
    "(message.id) | exactly once by your key"
)
BY_KEY = "elsewhere, idempotent by a key that you pass | any | exactly once by that key"
AT_LEAST = "elsewhere, not idempotent: a mail | any | at least once; ACK_FIRST: at most once"
NUMBER = 200


@pytest.fixture
def ids(committed: None) -> list[int]:
    Message.objects.create_queue("orders", visibility_timeout=1, max_deliveries=10_000)
    return queue("orders").send_batch(range(NUMBER))


def effects() -> Counter[int]:
    return Counter(int(number) for number in Order.objects.values_list("number", flat=True))


def order(message: Message) -> None:
    Order.objects.create(number=str(message.id))


def work_off(full_speed: FullSpeed, consume: Any, kind: str, fault: bool, **options: Any) -> None:
    """Consume with two consumers of this kind, under faults for a while, until all is done."""
    handler = handler_of(kind, full_speed.journal, **options)
    started = [consume(handlers=[handler], options={"workers": 4}) for _ in range(2)]
    full_speed.wait(lambda: full_speed.notes("read"))  # a consumer that cannot register ends
    if fault:
        full_speed.cut_connections(of_consumers=True)
    full_speed.run(least=1)
    full_speed.wait(is_empty)
    for each in started:
        each.stop()


@promise(ONE_COMMIT)
@pytest.mark.parametrize("fault", [False, True], ids=["no fault", "cut"])
@pytest.mark.parametrize("kind", ["TRANSACTIONAL", "TRANSACTIONAL batch", "locked"])
def test_an_effect_and_its_ack_are_one_commit(full_speed, consume, ids, kind, fault):
    work_off(full_speed, consume, kind, fault, effect=order)

    assert effects() == Counter(ids)
    assert not fault or full_speed.cut


@promise(ONE_COMMIT)
@pytest.mark.parametrize("name", ["transactional", "locked"])
def test_an_effect_and_its_ack_are_one_commit_in_processes_that_are_killed(
    committed, full_speed, name
):
    Message.objects.create_queue(name, visibility_timeout=1, max_deliveries=10_000)
    ids = queue(name).send_batch(
        [{"op": n, "before": "raise" if n % 9 == 0 else None} for n in range(150)]
    )
    with runconsumer(url(), name, "--workers", 4) as one, runconsumer(url(), name) as two:
        for victim in (one, two, one):
            done = Order.objects.count()
            full_speed.wait(lambda done=done: Order.objects.count() > done or is_empty())
            victim.kill()
            victim.start()
        full_speed.wait(is_empty)

    assert effects() == Counter(range(len(ids)))


@promise(BY_ID, BY_KEY)
@pytest.mark.parametrize("kind", ["ACK", "NACK_ON_ERROR", "REJECT_ON_ERROR", "MANUAL", "batch"])
def test_an_effect_under_a_key_of_the_message_happens_once(full_speed, consume, ids, kind):
    run_sql(f"CREATE UNIQUE INDEX promised_once ON {Order._meta.db_table} (number)")

    def order_once(message: Message) -> None:
        try:
            with transaction.atomic():
                order(message)
        except IntegrityError:
            pass

    try:
        work_off(full_speed, consume, kind, True, effect=order_once)
        found = effects()
    finally:
        run_sql("DROP INDEX promised_once")

    assert set(found.values()) == {1}
    assert found.keys() <= set(ids)
    # Those two end a message whose handler raises, also one that was cut off before its effect.
    if kind not in ("ACK", "REJECT_ON_ERROR"):
        assert found == Counter(ids)


@promise(AT_LEAST)
@pytest.mark.parametrize("kind", ["NACK_ON_ERROR", "async", "ACK_FIRST"])
def test_a_mail_is_sent_at_least_once_or_with_ack_first_at_most_once(
    full_speed, consume, ids, kind
):
    work_off(full_speed, consume, kind, fault=True)

    mails = Counter(note["id"] for note in full_speed.notes("ends"))
    if kind == "ACK_FIRST":
        assert set(mails.values()) == {1}
        assert mails.keys() <= set(ids)
    else:
        assert mails.keys() == set(ids)


EXPLAINED = [
    "Nothing is atomic across two databases: exactly once needs the queue and the data in one "
    "database."
]
