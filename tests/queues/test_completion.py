"""Editors show the arguments of operations and of their async twins: asked as jedi asks."""

from __future__ import annotations

import inspect

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
