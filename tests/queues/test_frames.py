"""The number of Python frames from an operation to its statement."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

import django_pgqueue
from django_pgqueue.models import Message

PACKAGE = str(Path(django_pgqueue.__file__).parent)


def frames_to_sql(act: Any) -> list[list[str]]:
    """Our functions on the stack, at each statement that runs."""
    found: list[list[str]] = []

    def look(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        frame, names = sys._getframe(), []
        while frame := frame.f_back:
            if frame.f_code.co_filename.startswith(PACKAGE):
                names.append(frame.f_code.co_name)
        found.append(names)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(look):
        act()
    return found


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("operation", "most"), [("send", 5), ("read", 6)])
def test_few_of_our_frames_lie_before_a_statement(committed_orders, operation, most):
    for number in range(40):
        committed_orders.send(number)
    committed_orders.read(qty=20)  # later reads start after the last claim
    act = {
        "send": lambda: committed_orders.send("another"),
        "read": lambda: committed_orders.read(qty=5),
    }[operation]

    found = frames_to_sql(act)

    assert found
    assert max(map(len, found)) <= most, found


def test_the_manager_has_at_most_two_classes_of_ours():
    ours = [
        each
        for each in type(Message.objects).__mro__
        if each.__module__.startswith("django_pgqueue")
    ]

    assert len(ours) <= 2, ours
