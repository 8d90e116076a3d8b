"""Editors show the arguments of operations and of their async twins: asked as jedi asks."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import jedi
import pytest

from django_pgqueue.models import BoundQueue

QUEUE = 'from django_pgqueue.models import queue\nqueue("orders").'
OBJECTS = "from django_pgqueue.models import Message\nMessage.objects."


def completed(code: str) -> set[str]:
    """The arguments that an editor shows after ``code``, which ends in an open parenthesis."""
    line = code.splitlines()[-1]
    [signature] = jedi.Script(code).get_signatures(code.count("\n") + 1, len(line))
    return {parameter.name for parameter in signature.params} - {"self"}


def names_after(code: str) -> set[str]:
    """The names that an editor shows after ``code``, which ends in a dot; no private ones."""
    found = jedi.Script(code).complete(code.count("\n") + 1, len(code.splitlines()[-1]))
    return {each.name for each in found if not each.name.startswith("_")}


def listed() -> list[list[str]]:
    """The names in each row of the table of methods in docs/operations.md."""
    page = Path(__file__).parents[2] / "docs" / "operations.md"
    table = page.read_text().partition("| used | methods |\n")[2].partition("\n\n")[0]
    return [re.findall(r"`(\w+)`", row) for row in table.splitlines()[1:]]


def test_each_method_of_a_queue_is_in_one_row_of_the_table():
    rows = listed()

    every = [name for row in rows for name in row]
    shown = names_after(QUEUE) - {"name", "using"}
    twins = {name for name in shown if name.startswith("a") and name[1:] in shown}
    assert sorted(every) == sorted(shown - twins)
    assert len(rows[0]) == 10


def test_a_queue_shows_the_rest_of_pgmqs_reads_one_step_away():
    further = names_after(f"{QUEUE}pgmq.") - names_after(QUEUE)

    reads = ["read_grouped_head", "read_grouped_head_with_poll"]
    reads += ["read_grouped_with_poll", "read_grouped_rr_with_poll"]
    assert further == {*reads, *(f"a{name}" for name in reads)}


@pytest.mark.parametrize("name", ["send", "send_batch", "read", "archive", "create"])
def test_an_editor_shows_the_arguments_of_an_operation(name):
    parameters = set(inspect.signature(getattr(BoundQueue, name)).parameters) - {"self"}

    assert completed(f"{QUEUE}{name}(") == parameters


@pytest.mark.parametrize("name", ["send", "send_batch", "read", "archive", "publish"])
def test_an_editor_shows_for_a_twin_the_arguments_of_its_method(name):
    where = OBJECTS if name == "publish" else QUEUE

    assert completed(f"{where}a{name}(") == completed(f"{where}{name}(")


@pytest.mark.parametrize(
    ("call", "first"),
    [
        ('from django_pgqueue import queue\nqueue("orders").send(', "body"),
        ("from django_pgqueue.models import Message\nMessage.objects.send(", "queue"),
    ],
)
def test_an_editor_shows_the_arguments_of_a_send(call, first):
    [signature] = jedi.Script(call).get_signatures()

    names = [parameter.name for parameter in signature.params]
    assert names[0] == first
    assert names[-2:] == ["max_wait", "unknown"]
