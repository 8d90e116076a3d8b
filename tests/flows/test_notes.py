"""A note says how far a handler is, to others and to the next delivery."""

from __future__ import annotations

import pytest

from django_pgqueue.errors import InvalidMessage, LeaseLost, QueueNotFound
from django_pgqueue.flows import steps
from django_pgqueue.flows.steps import NOTE_BYTES
from django_pgqueue.maintenance import upkeep
from django_pgqueue.models import Message, Note, Step, queue
from tests.flows.doing import again, leased


@pytest.fixture
def clock(monkeypatch):
    """The time that decides whether a note is stored: ``clock[0]`` in seconds."""
    now = [1000.0]
    monkeypatch.setattr(steps.time, "monotonic", lambda: now[0])
    return now


def test_others_and_the_next_delivery_read_the_last_note(orders):
    orders.send({})
    message = leased()
    assert message.last_note() is None
    assert orders.note(message.id) is None
    message.note({"row": 1})
    message.note({"row": 2}, flush=True)

    assert orders.note(message.id) == {"row": 2}
    assert message.last_note() == {"row": 2}
    assert again(message).last_note() == {"row": 2}
    assert Note.objects.count() == 1


def test_a_note_within_a_second_of_the_last_stored_one_is_left_out(orders, clock):
    orders.send({})
    message = leased()
    stored = []
    for row, seconds in enumerate((0, 0.5, 0.4, 0.2, 0.9, 0.2)):
        clock[0] += seconds
        message.note(row)
        stored.append(orders.note(message.id))

    assert stored == [0, 0, 0, 3, 3, 5]


def test_flush_stores_a_note_in_any_case(orders, clock):
    orders.send({})
    message = leased()
    message.note(1)
    message.note(2, flush=True)
    message.note(3)

    assert orders.note(message.id) == 2


def test_a_note_of_none_is_no_note(orders):
    orders.send({})
    message = leased()
    message.note({"row": 1})
    message.note(None, flush=True)

    assert orders.note(message.id) is None


@pytest.mark.parametrize("value", [{1}, float("inf"), "a\0"])
def test_a_note_is_json_even_when_it_is_left_out(orders, value):
    orders.send({})
    message = leased()
    message.note({"row": 1})

    with pytest.raises(InvalidMessage, match="the note"):
        message.note(value)


def test_a_note_has_a_limit(orders):
    orders.send({})
    message = leased()
    message.note("x" * (NOTE_BYTES - 2), flush=True)

    with pytest.raises(InvalidMessage, match=f"the note is {NOTE_BYTES + 1} bytes of JSON"):
        message.note("x" * (NOTE_BYTES - 1), flush=True)


def test_a_late_worker_notes_nothing(orders):
    orders.send({})
    late = leased()
    late.note({"row": 1})
    again(late).note({"row": 7})

    with pytest.raises(LeaseLost):
        late.note({"row": 2}, flush=True)
    assert orders.note(late.id) == {"row": 7}


def test_notes_are_those_of_one_queue(orders):
    queue("others").create()
    orders.send({})
    message = leased()
    message.note({"row": 1})

    assert queue("others").note(message.id) is None
    with pytest.raises(QueueNotFound):
        queue("nowhere").note(message.id)


def test_a_subscription_has_steps_and_notes_of_its_own(committed_orders):
    for name in ("audit", "mails"):
        queue(name).subscribe(to="orders", start="earliest")
    committed_orders.send_batch([{}] * 20)
    audit, mail = queue("audit").read(qty=20)[0], queue("mails").read(qty=20)[0]
    assert audit.id == mail.id

    assert audit.step("charge", lambda: 1) == 1
    assert mail.step("charge", lambda: 2) == 2
    audit.note({"row": 1})
    assert queue("mails").note(mail.id) is None
    queue("audit").set_vt(audit.id, 0)
    later = next(each for each in queue("audit").read(qty=20) if each.id == audit.id)
    assert later.step("charge", lambda: 3) == 1
    with pytest.raises(LeaseLost):
        audit.step("mail", lambda: 4)


def test_maintenance_deletes_steps_and_notes_after_their_message(committed_orders):
    orders = committed_orders
    orders.send_batch([{}] * 4)
    messages = orders.read(qty=4)
    for message in messages:
        message.step("a", lambda: 1)
        message.step("b", lambda: 2)
        message.note({"row": 1})
    deleted, archived, dead, _live = messages
    queue("dead").create()
    orders.alter(dead_letter_queue="dead")
    orders.delete(deleted)
    orders.archive(archived)
    orders.fail({dead.receipt: "no"})
    orders.maintain()

    assert [len(orders.steps(message.id)) for message in messages] == [0, 2, 2, 2]
    assert Note.objects.count() == 3
    queue("dead").delete(Message.objects.get(pk=dead.id).id)
    orders.maintain()
    assert [len(orders.steps(message.id)) for message in messages] == [0, 2, 0, 2]


def test_maintenance_goes_on_behind_a_message_with_many_steps(committed_orders, monkeypatch):
    monkeypatch.setattr(upkeep, "PRUNED", 3)
    committed_orders.send_batch([{}] * 31)
    live, *gone = committed_orders.read(qty=31)
    for number in range(9):
        live.step(f"rows-{number}", lambda: 1)
    for message in gone:
        message.step("a", lambda: 1)
    committed_orders.delete(gone)
    committed_orders.maintain()

    assert len(committed_orders.steps(live.id)) == 9
    assert Step.objects.count() == 9


def test_maintenance_finds_steps_anywhere_in_time(committed_orders, monkeypatch):
    monkeypatch.setattr(upkeep, "PRUNED", 3)
    committed_orders.send_batch([{}] * 30)
    messages = committed_orders.read(qty=30)
    for message in messages:
        message.step("a", lambda: 1)
    committed_orders.delete(messages[:10])
    committed_orders.delete(messages[20:21])
    committed_orders.maintain()

    assert not any(committed_orders.steps(message.id) for message in messages[:10])
    for _round in range(200):
        if not committed_orders.steps(messages[20].id):
            break
        committed_orders.maintain()
    assert [len(committed_orders.steps(m.id)) for m in messages[10:]] == [1] * 10 + [0] + [1] * 9
