"""Steps and notes on the page of a message."""

from __future__ import annotations

import datetime as dt
import html
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils.timezone import now

from django_pgqueue import queue, signal
from django_pgqueue.acks import Waiting
from django_pgqueue.admin.flows import LENGTH, MOST_STEPS
from django_pgqueue.models import BoundQueue, Message, Note, Queue, Step
from tests.admin.conftest import page, queries
from tests.admin.test_message_page import life


def leased(bound: BoundQueue) -> Message:
    [message] = bound.read()
    return message


def values(client: Client, pk: int) -> list[str]:
    """The values on the timeline of a message, in its order."""
    text = page(client, "message", "change", pk)
    events = text.partition('<ol class="pgqueue-timeline">')[2].partition("</ol>")[0]
    return [html.unescape(each) for each in re.findall("<code>(.*?)</code>", events, re.DOTALL)]


def keep(name: str, pk: int, *steps: str, note: Any = None) -> None:
    """Store steps of a message in a queue, each a little later than the one before, and a note."""
    of, first = Queue.objects.get(name=name), now()
    Step.objects.bulk_create(
        Step(queue=of, message_id=pk, name=step, value=n, at=first + dt.timedelta(milliseconds=n))
        for n, step in enumerate(steps)
    )
    if note is not None:
        Note.objects.create(queue=of, message_id=pk, value=note)


def test_each_step_and_the_note_are_on_the_timeline_at_their_times(operator, orders):
    pk = orders.send(1)
    message = leased(orders)
    message.step("charge", lambda: {"to": "Zoë", "receipt": "r-41"})
    message.note({"row": 1})
    message.step("mail", lambda: [1, None])

    shown = life(operator, pk)

    assert shown.startswith("Sent First delivery")
    assert (
        'Step "charge" done {"to": "Zoë", "receipt": "r-41"} Noted {"row": 1} '
        'Step "mail" done [1, null] In flight'
    ) in shown


def test_a_step_that_returned_none_has_no_value(operator, orders):
    pk = orders.send(1)
    leased(orders).step("mail", lambda: None)

    assert 'Step "mail" done' in life(operator, pk)
    assert values(operator, pk) == []


def test_a_message_without_steps_shows_none(operator, orders):
    other, pk = orders.send_batch([1, 2])
    keep("orders", other, "charge", note=1)
    orders.archive(pk)

    assert life(operator, pk).startswith("Sent Completed")


def test_steps_are_shown_after_the_message_has_ended(operator, orders):
    pk = orders.send(1)
    message = leased(orders)
    message.step("charge", lambda: 41)
    orders.archive([message])

    assert 'Step "charge" done 41 Completed' in life(operator, pk)


def test_names_and_values_are_only_text(operator, orders):
    pk = orders.send(1)
    message = leased(orders)
    message.step("<b>\u202egnp", lambda: "<i>\u202efdp")
    message.note("</code><script>")

    text = page(operator, "message", "change", pk)

    assert "Step &quot;&lt;b&gt;\\u202egnp&quot; done" in text
    assert values(operator, pk) == ['"<i>\\u202efdp"', '"</code><script>"']


SECRETS = [{"token": "hunter2"}, {"a": [{"API_KEY": ["hunter2"]}]}, {"n": {"password": 'hunter2"'}}]


@pytest.mark.parametrize("value", SECRETS)
def test_secrets_are_masked(operator, orders, value):
    pk = orders.send(1)
    message = leased(orders)
    message.step("charge", lambda: {"receipt": 41, **value})
    message.note({"row": 7, **value})

    shown = values(operator, pk)

    assert [each.count("•••") for each in shown] == [1, 1]
    assert '"receipt": 41' in shown[0]
    assert '"row": 7' in shown[1]
    assert "hunter" not in page(operator, "message", "change", pk)


@pytest.mark.parametrize("value", SECRETS)
def test_secrets_are_masked_in_a_value_that_is_cut_anywhere(operator, orders, value):
    pk = orders.send(1)
    message = leased(orders)
    length = len(json.dumps(value))
    for at in range(length + 1):
        message.step(f"at {at}", dict, a="x" * (LENGTH - at), b=value)

    shown = values(operator, pk)

    assert len(shown) == length + 1
    assert not [each for each in shown if "hunter" in each]


def test_the_name_of_a_step_is_the_key_of_its_value(operator, orders, settings):
    settings.PGQUEUE = {"MASKED_KEYS": ["token"]}
    pk = orders.send(1)
    message = leased(orders)
    message.step("fetch Token", lambda: "hunter2")
    message.step("drop token", lambda: None)
    message.step("password", lambda: "seen")

    assert values(operator, pk) == ["•••", '"seen"']
    assert 'Step "fetch Token" done' in life(operator, pk)


def test_long_values_are_cut_and_say_so(operator, orders):
    pk = orders.send(1)
    message = leased(orders)
    message.step("whole", lambda: "x" * (LENGTH - 2))
    message.step("longer", lambda: "x" * (LENGTH - 1))
    message.step("large", lambda: ["x" * 1_000_000])
    message.note("x" * 10_000)

    whole, longer, large, note = values(operator, pk)

    assert whole == f'"{"x" * (LENGTH - 2)}"'
    assert longer == note == f'"{"x" * (LENGTH - 1)}…'
    assert large == f'["{"x" * (LENGTH - 2)}…'


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (MOST_STEPS, []),
        (MOST_STEPS + 1, ["1 earlier step is not shown"]),
        (1100, ["1,050 earlier steps are not shown"]),
    ],
)
def test_of_many_steps_the_newest_are_shown_and_the_others_counted(operator, orders, number, said):
    pk = orders.send(1)
    keep("orders", pk, *(f"row {n}" for n in range(number)), note={"row": number})

    shown = life(operator, pk)

    told = re.findall(r'[\d,]+ earlier steps? \w+ not shown|Step "row \d+" done', shown)
    newest = range(number - MOST_STEPS, number)
    assert told == [*said, *(f'Step "row {n}" done' for n in newest)]
    assert f'Noted {{"row": {number}}}' in shown


def test_steps_of_the_same_time_are_in_the_order_of_their_names(operator, orders):
    pk = orders.send(1)
    at = now()
    Step.objects.bulk_create(
        Step(queue_id=Queue.objects.get().pk, message_id=pk, name=f"{n:02}", at=at)
        for n in range(MOST_STEPS + 5)
    )

    shown = life(operator, pk)

    assert re.findall('Step "([0-9]+)" done', shown) == [f"{n:02}" for n in range(5, 55)]
    assert shown.index("5 earlier steps") < shown.index('Step "05"')


@pytest.mark.parametrize("use_tz", [True, False])
def test_a_dead_letter_shows_the_steps_of_its_queue(
    operator, orders, dead_letters, settings, use_tz
):
    pk = orders.send(1)
    message = leased(orders)
    message.step("charge", lambda: 41)
    message.note({"row": 1})
    message.reject("no")
    leased(dead_letters).step("look", lambda: 42)
    settings.USE_TZ = use_tz

    dead = life(operator, pk)
    dead_letters.set_vt(pk, 0)
    dead_letters.redrive()
    sent_back = life(operator, pk)

    assert re.search(
        r'Sent to orders Step "charge" done 41 Noted {"row": 1} Failed for good in orders'
        r'.*Step "look" done 42',
        dead,
    )
    assert re.search('Step "charge" done 41 .*Step "look" done 42', sent_back)


@pytest.mark.django_db(transaction=True)
def test_a_source_and_its_subscriptions_show_their_own_steps(operator, committed_orders):
    dead = queue("dead")
    dead.create()
    names = ("audit", "mails")
    for name in names:
        queue(name).subscribe(to="orders", start="earliest", dead_letter_queue="dead")
    pk = committed_orders.send(1)
    for name in ("orders", *names):
        message = leased(queue(name))
        message.step(f"of {name}", lambda: None)
        message.note(name)
        if name == "mails":
            message.reject("no")
        else:
            queue(name).set_vt(pk, 0)
    [letter] = dead.peek()

    def shown(name: str, pk: int) -> list[str]:
        number = Queue.objects.get(name=name).pk
        text = page(operator, "message", "change", pk, queue=number)
        return re.findall(r"Step &quot;(.+?)&quot; done|<code>&quot;(\w+)&quot;", text)

    for name in ("orders", "audit"):
        assert shown(name, pk) == [(f"of {name}", ""), ("", name)]
    assert shown("dead", letter.id) == [("of mails", ""), ("", "mails")]


@pytest.fixture
def ours(staff: Callable[..., Client], settings: Any, db: None) -> Client:
    """A client that may see queues whose names start with ``ann.``"""
    settings.PGQUEUE = {"QUEUES_FOR": "tests.admin.access.ours"}
    for name in ("ann.orders", "ann.more", "bob.orders", "bob.secret"):
        Message.objects.create_queue(name)
    return staff("view_queue", "view_message")


def test_who_may_see_some_queues_sees_the_steps_of_the_message_in_them(ours):
    pk = queue("ann.orders").send(1)
    keep("ann.orders", pk, "charge", note="ours")
    keep("bob.secret", pk, "hunt", note="hunter2")

    shown = life(ours, pk)

    assert 'Step "charge" done' in shown
    assert values(ours, pk) == ["0", '"ours"']
    assert "hunt" not in shown


def test_who_may_see_some_queues_sees_what_a_dead_letter_did_in_its_source(ours):
    """Also if the user may not see the source, as with the attempts."""
    Queue.objects.filter(name="bob.orders").update(
        dead_letter_queue=Queue.objects.get(name="ann.orders")
    )
    Queue.objects.forget_all()
    pk = queue("bob.orders").send(1)
    message = leased(queue("bob.orders"))
    message.step("charge", lambda: 41)
    message.reject("no")
    keep("bob.secret", pk, "hunt", note="hunter2")

    shown = life(ours, pk)

    assert 'Step "charge" done 41 Failed for good in bob.orders' in shown
    assert "hunt" not in shown


@pytest.mark.django_db(transaction=True)
def test_a_header_that_a_sender_wrote_shows_no_steps_of_a_subscription(
    staff, settings, committed_orders
):
    queue("audit").subscribe(to="orders", start="earliest")
    audit = queue("audit")
    told = {"source": "audit", "dead_lettered_at": "2026-11-22T00:00:00Z"}
    other = committed_orders.send(1)
    pk = committed_orders.send(2, headers={"x-dead-letter": {**told, "id": other}})
    for message in audit.read(qty=2):
        message.step("hunt", lambda: "hunter2")
    client = staff("view_queue", "view_message")
    number = Queue.objects.get(name="orders").pk

    for hook in ({}, {"QUEUES_FOR": "tests.admin.test_flows.only_orders"}):
        settings.PGQUEUE = hook
        text = page(client, "message", "change", pk, queue=number)
        assert "Sent to audit" in text or "Failed for good in audit" in text
        assert "hunt" not in text


def only_orders(request: Any) -> Any:
    """A QUEUES_FOR hook."""
    return Queue.objects.filter(name="orders")


def test_a_wait_is_shown_until_its_signal_comes(operator, orders):
    pk = orders.send(1)
    with pytest.raises(Waiting):
        orders.read()[0].wait_for("paid:7", timeout="3d")
    assert "Step &quot;wait_for paid:7&quot; waits" in page(operator, "message", "change", pk)
    signal("paid:7", 41)
    orders.read()

    text = page(operator, "message", "change", pk)
    assert "Step &quot;wait_for paid:7&quot; done" in text
    assert "waits" not in text


def test_a_page_asks_once_for_however_many_steps(operator, orders):
    few, many = orders.send_batch([1, 2])
    keep("orders", few, "charge")
    keep("orders", many, *(f"row {n}" for n in range(200)), note=1)
    life(operator, few)  # Django caches its content types from now on
    asked = []

    for pk in (few, many):
        with CaptureQueriesContext(connection) as each:
            page(operator, "message", "change", pk)
        asked.append(queries(each))
        assert len([q for q in each if "pgqueue_step" in q["sql"]]) == 1

    assert asked[0] == asked[1]
