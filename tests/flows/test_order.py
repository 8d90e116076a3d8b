"""The order and the import of docs/flows.md, whose process dies at each line of its handler."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from django_pgqueue import handlers, signal
from django_pgqueue.models import ArchivedMessage, LiveMessage, queue
from django_pgqueue.testing import drain, travel
from tests.app.models import Order
from tests.test_docs import ROOT, blocks, run

PAGE = ROOT / "docs" / "flows.md"
DAYS = 86_400
#: More line events than the handler and its steps have.
MOST = 28


class Died(BaseException):
    """The process dies."""


class Dying:
    """Raises Died at the n-th line that runs in the page's code; counts calls of its functions."""

    def __init__(self, line: int) -> None:
        self._left = line
        self.calls: Counter[str] = Counter()
        self.died_in = ""

    def __enter__(self) -> Dying:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *raised: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        if Path(frame.f_code.co_filename) != PAGE:
            return None
        if event == "call":
            self.calls[frame.f_code.co_name] += 1
        elif event == "line":
            self._left -= 1
            if self._left == 0:
                self.died_in = frame.f_code.co_name
                raise Died
        return self._trace


@pytest.fixture
def page(shop) -> dict[str, Any]:
    """The names that the page's code defines."""
    names: dict[str, Any] = {"__name__": "guide"}
    for block in blocks(PAGE):
        run(block, names)
    return names


def deliver(dying: Dying, name: str = "orders.placed") -> None:
    """Drain the queue; whenever the process dies, another one goes on after the lease."""
    while True:
        try:
            with dying:
                drain(name)
            return
        except Died:
            queue(name).set_vt([m.id for m in _in_flight(name)], 0)


def _in_flight(name: str) -> Any:
    return LiveMessage.objects.filter(queue__name=name, state="PROCESSING")


@pytest.mark.parametrize("is_paid", [True, False], ids=["paid", "not paid"])
@pytest.mark.parametrize("line", range(1, MOST))
def test_an_order_that_dies_at_any_line_ends_as_one_that_lives(page, is_paid, line):
    queue("orders.placed").create()
    order = Order.objects.create(number="7")
    pk = queue("orders.placed").send({"order": order.pk})
    dying = Dying(line)

    deliver(dying)
    if is_paid:
        page["payment_came"](order.pk, "r-41")
        deliver(dying)
        travel(DAYS)
    else:
        travel(3 * DAYS)
    deliver(dying)

    assert ArchivedMessage.objects.get(pk=pk).state == "COMPLETED"
    order.refresh_from_db()
    assert order.note == ("r-41" if is_paid else "cancelled")
    calls = Counter({"send_mail": 2, "mark_paid": 1} if is_paid else {"send_mail": 1, "cancel": 1})
    if dying.died_in in calls:
        calls[dying.died_in] += 1  # it died within the step
    assert {name: dying.calls[name] for name in calls} == calls
    assert signal(f"paid:{order.pk}") == 0


def test_there_are_not_more_lines_than_the_test_tries(page):
    queue("orders.placed").create()
    order = Order.objects.create(number="7")
    queue("orders.placed").send({"order": order.pk})
    dying = Dying(MOST - 1)
    deliver(dying)
    page["payment_came"](order.pk, "r-41")
    deliver(dying)
    travel(DAYS)
    deliver(dying)

    assert not dying.died_in
    assert handlers.handlers()


def test_an_import_that_dies_at_any_line_saves_each_row_once(page):
    queue("imports").create()
    rows = [str(number) for number in range(210)]
    died_in = set()
    for line in (*range(1, 12), *range(12, 300, 23)):
        pk = queue("imports").send({"rows": rows})
        dying = Dying(line)
        deliver(dying, "imports")
        died_in.add(dying.died_in)
        assert ArchivedMessage.objects.get(pk=pk).state == "COMPLETED"
        assert sorted(Order.objects.values_list("number", flat=True)) == sorted(rows)
        Order.objects.all().delete()

    assert {"load", "save", ""} <= died_in
