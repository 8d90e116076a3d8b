"""The shop's own tests, one for each feature that it uses."""

from __future__ import annotations

import datetime as dt

import pytest
from django.db import transaction
from django.test import AsyncClient, TestCase, TransactionTestCase

from django_pgqueue import queue
from django_pgqueue.errors import MessageCancelled
from django_pgqueue.testing import MakeQueue, assert_enqueued, assert_not_enqueued, drain, eager
from django_pgqueue.testing import travel as advance
from django_pgqueue.testing.factories import MessageFactory
from shop import ordering
from shop.models import Mail, Order
from shop.tasks import count_orders


def texts() -> list[str]:
    return list(Mail.objects.order_by("pk").values_list("text", flat=True))


class AnOrder(TestCase):
    def test_is_sent_with_its_transaction(self) -> None:
        order = ordering.place("A-7")
        with pytest.raises(ValueError, match="has a number"):
            ordering.place("")

        assert_enqueued("payments", body={"order": order.pk}, count=1)
        assert_enqueued("payments", count=1)

    def test_is_charged_though_the_bank_is_closed_at_first(self) -> None:
        order = ordering.place("A-7", customer="late")

        handled = drain("payments", policies=True)

        order.refresh_from_db()
        assert (order.note, len(handled)) == ("charged", 3)

    def test_is_followed_by_a_reminder_after_three_days(self) -> None:
        order = ordering.place("A-7")

        assert drain("reminders") == []
        advance(dt.timedelta(days=3))
        drain("reminders")

        assert texts() == [f"How was order {order.pk}?"]

    def test_has_one_receipt_however_often_it_is_asked_for(self) -> None:
        order = ordering.place("A-7")

        first, again = ordering.ask_for_receipt(order), ordering.ask_for_receipt(order)
        drain("receipts")

        assert (again, first.conflict, again.conflict) == (first, None, "skipped")
        assert texts() == [f"Receipt for order {order.pk}"]

    def test_with_a_stolen_card_is_a_dead_letter_until_it_is_redriven(self) -> None:
        order = ordering.place("A-7", customer="mallory")

        drain("payments", policies=True)
        [dead] = queue("payments.dead").peek()
        assert dead.headers is not None
        assert dead.headers["x-dead-letter"]["error"] == "the card is stolen"

        Order.objects.filter(pk=order.pk).update(customer="mal")
        assert queue("payments.dead").redrive() == 1
        drain("payments")
        order.refresh_from_db()
        assert order.note == "charged"


class Addresses(TestCase):
    def test_are_located_at_the_rate_that_the_service_allows(self) -> None:
        with transaction.atomic():
            ordering.locate([f"High Street {number}" for number in range(25)])

            assert len(drain("geocoding")) == 1
            advance(60)
            assert len(drain("geocoding")) == 10
        advance(600)
        assert len(drain("geocoding")) == 14
        assert len(texts()) == 25


class Imports(TestCase):
    def test_run_two_at_a_time(self) -> None:
        queue("imports").send_batch([{"file": number} for number in range(5)])

        first = queue("imports").read(qty=5)
        assert [message.body["file"] for message in first] == [0, 1]
        assert queue("imports").read() == []
        queue("imports").archive(first[0])
        assert [message.body["file"] for message in queue("imports").read(qty=5)] == [2]


class Shipments(TestCase):
    def test_of_one_customer_keep_their_order(self) -> None:
        first, second, other = (
            ordering.place(number, customer)
            for number, customer in [("A-1", "ann"), ("A-2", "ann"), ("B-1", "bob")]
        )
        Order.objects.filter(pk__in=[second.pk, other.pk]).update(note="packed")
        for order in (first, second, other):
            ordering.ship(order)

        with pytest.raises(LookupError, match="not packed yet"):
            drain("shipping")
        drain("shipping")
        assert texts() == ["B-1 is on its way"]

        Order.objects.update(note="packed")
        advance(30)
        drain("shipping")
        assert texts() == ["B-1 is on its way", "A-1 is on its way", "A-2 is on its way"]


class Tasks(TestCase):
    def test_run_at_once_in_eager_mode(self) -> None:
        ordering.place("A-7")

        with eager():
            result = count_orders.enqueue("ann")
        result.refresh()

        assert result.return_value == 1


class Mails(TestCase):
    def test_are_delivered_in_batches(self) -> None:
        queue("mails").send_batch(["one", "two", "three"])

        assert len(drain("mails")) == 3
        assert texts() == ["one", "two", "three"]

    async def test_are_sent_from_an_async_view(self) -> None:
        answer = await AsyncClient().get("/orders", {"number": "A-7"})

        assert answer.status_code == 201
        [message] = await queue("mails").apeek()
        assert message.body == "We got order A-7"
        assert answer.json() == {"message": message.id}


class Quotes(TestCase):
    def test_have_a_result_unless_they_are_cancelled(self) -> None:
        order = ordering.place("A-7")
        wanted, unwanted = ordering.quote(order), ordering.quote(order)

        assert ordering.cancel_quote(unwanted)
        drain("quotes")

        assert ordering.quoted(wanted) == {"order": order.pk, "cents": 500}
        with pytest.raises(MessageCancelled):
            ordering.quoted(unwanted)


class Reports(TestCase):
    def test_are_written_each_day(self) -> None:
        assert_not_enqueued("reports")
        assert advance(dt.timedelta(days=1)) == 1
        assert_enqueued("reports", body={"report": "sales"}, count=1)
        drain("reports")

        assert texts() == ["The sales of today"]


class ACommittedOrder(TransactionTestCase):
    """Its flush deletes all rows, those of queues too, which the next test or run finds again."""

    def test_is_charged(self) -> None:
        order = ordering.place("A-7")
        drain("payments")

        order.refresh_from_db()
        assert order.note == "charged"

    def test_is_counted_by_a_task(self) -> None:
        ordering.place("A-7")
        with eager():
            result = count_orders.enqueue("ann")
        result.refresh()

        assert result.return_value == 1


@pytest.mark.django_db
def test_a_queue_of_a_test_and_a_factory(make_queue: MakeQueue) -> None:
    audit = make_queue("audit", limit=3)
    audit.send({"order": 7})
    message = MessageFactory(queue__name="audit", body={"order": 8})

    assert [each.body["order"] for each in audit.peek(qty=10)] == [7, message.body["order"]]
    assert_not_enqueued("audit", contains={"order": 9})
