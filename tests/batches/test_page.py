"""The code of docs/batches.md runs as written."""

from __future__ import annotations

from typing import Any

import django
import pytest

from django_pgqueue import queue
from django_pgqueue.models import Batch, Message
from django_pgqueue.testing import drain
from tests.app.models import Order
from tests.test_guides import TASKS, play

__all__ = ["play"]


@pytest.fixture
def page(play: Any, shop: None, settings: Any) -> dict[str, Any]:
    """The names that the page's code defines."""
    if django.VERSION < (6, 0):
        pytest.skip("Django's Tasks came with 6.0")
    settings.TASKS = TASKS
    for name in ("mails", "reports", "files", "default"):
        queue(name).create()
    names: dict[str, Any] = play("batches.md")
    return names


def told() -> dict[str, Any]:
    """What the header of the only callback tells."""
    [callback] = Message.objects.filter(headers__has_key="x-batch").exclude(
        headers__regex=r'"x-batch": \d'
    )
    found: dict[str, Any] = callback.headers["x-batch"]
    return found


def test_the_report_is_written_after_the_last_mail(page, capsys):
    for number in range(3):
        Order.objects.create(number=str(number))

    pk = page["send_newsletter"]()
    assert page["progress"](pk) == ("running", 0, 3, dict.fromkeys(Batch().counts, 0))
    drain("mails")
    drain("reports")

    assert capsys.readouterr().out.endswith("3 of 3 mails were sent, 0 failed\n")
    assert page["progress"](pk)[:3] == ("done", 3, 3)


def test_a_task_follows_many_tasks(page, capsys):
    from django_pgqueue.tasks import consuming

    consuming.register()
    results = page["remind_all"]([7, 8])
    drain("default")

    assert capsys.readouterr().out == "reminded 7\nreminded 8\nall are reminded\n"
    for result in results:
        result.refresh()
        assert result.is_finished


def test_handlers_find_more_members(page):
    page["begin_import"]()
    [first] = queue("files").peek()
    batch = Batch.objects.of(first)
    assert batch is not None
    batch.send({"names": ["a", "b"], "last": True})
    drain("files")

    assert told()["completed"] == 4
    batch.refresh_from_db()
    assert batch.outcome == "done"


def test_a_batch_is_stopped(page):
    Order.objects.create(number="1")

    page["stop"](page["send_newsletter"]())

    assert told()["outcome"] == "cancelled"
