"""The page of a queue's tasks: their run times and failures in the newest messages that ended."""

from __future__ import annotations

import re
from typing import Any

from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_pgqueue.admin import tasks_page
from django_pgqueue.models import BoundQueue, Queue
from tests.admin.conftest import MOST, page, plain, queries


def body(task: str, *args: Any) -> dict[str, Any]:
    return {"task": task, "args": args, "kwargs": {}}


def ran(orders: BoundQueue, task: str, *seconds: float | None, **more: Any) -> None:
    """Runs of a task with these run times; None: it failed."""
    orders.send_batch([{**body(task), **more}] * len(seconds))
    for message, lasted in zip(orders.read(qty=len(seconds)), seconds, strict=True):
        if lasted is None:
            message.reject("no")
        else:
            result = {"return_value": None, "worker_id": "7", "seconds": lasted}
            orders.complete([message.receipt], results={message.receipt: result})


def shown(client: Any, **query: Any) -> str:
    return page(client, "queue", "tasks", Queue.objects.get(name="orders").pk, **query)


def table(text: str) -> list[str]:
    """The rows of the table of tasks, as visible text."""
    found = text.partition('<table class="rows">')[2].partition("</table>")[0]
    return [plain(row) for row in re.findall(r"<tr>.*?</tr>", found, re.DOTALL)]


def bars(text: str) -> dict[str, str]:
    """The histogram's counts, without those that are zero."""
    found = text.partition('id="pgqueue-histogram"')[2].partition("</details>")[0]
    pairs = re.findall(r'<th scope="row">(.*?)</th><td class="number">(.*?)</td>', found)
    return {times: count for times, count in pairs if count != "0"}


def test_run_times_of_a_task_are_a_histogram(operator, orders):
    ran(orders, "shop.mail", 1.0, 1.0, 1.0, 2.5, None)
    ran(orders, "shop.report", 60, None)
    orders.send({"order": 7})
    orders.archive(orders.read())

    text = shown(operator)

    assert table(text) == [
        "Task Runs Failed p50 p95 Longest",
        "shop.mail 5 1 1 s 2.5 s 2.5 s",
        "shop.report 2 1 1 min 1 min 1 min",
    ]
    assert "<h2>Run times of shop.mail</h2>" in text
    assert "4 successful runs among the newest 1,000 messages that ended" in text
    assert bars(text) == {"1 s \u2013 1.19 s": "3", "2.38 s \u2013 2.83 s": "1"}
    other = shown(operator, task="shop.report")
    assert bars(other) == {"53.8 s \u2013 1.07 min": "1"}
    assert "q=body.task%3Ashop.report" in other
    assert "No message of shop.&lt;gone&gt; is among them." in shown(operator, task="shop.<gone>")


def test_the_sample_is_bounded_and_says_what_it_leaves_out(operator, orders, monkeypatch):
    ran(orders, "shop.old", 1.0)
    ran(orders, "shop.mail", 1.0, 1.0)
    ran(orders, "shop.large", 1.0, noise=[n**7 for n in range(9000)])
    ran(orders, "shop.untold", 1.0)
    orders.send(body("shop.odd"))
    [message] = orders.read()
    orders.complete([message.receipt], results={message.receipt: {"seconds": "soon"}})
    monkeypatch.setattr(tasks_page, "LOOK", 5)
    shown(operator)

    with CaptureQueriesContext(connection) as asked:
        text = shown(operator)

    rows = [row.split()[0] for row in table(text)[1:]]
    assert rows == ["shop.mail", "shop.odd", "shop.untold"]
    assert "Left out, since their bodies are large: 1 message." in text
    assert "No run of shop.odd was successful" in plain(shown(operator, task="shop.odd"))
    assert queries(asked) <= MOST


def test_a_queues_page_and_a_tasks_message_lead_to_the_run_times(operator, orders):
    pk = Queue.objects.get(name="orders").pk
    url = reverse("admin:django_pgqueue_queue_tasks", args=[pk])
    plain_id = orders.send({"order": 7})
    assert f'href="{url}"' not in page(operator, "queue", "overview", pk)
    assert "No task has ended." in shown(operator)

    message_id = orders.send(body("shop.mail"))

    assert f'href="{url}"' in page(operator, "queue", "overview", pk)
    link = f'<a href="{url}?task=shop.mail">shop.mail</a>'
    assert link in page(operator, "message", "change", message_id)
    assert url not in page(operator, "message", "change", plain_id)


def test_tasks_of_other_queues_are_out_of_sight(operator, orders, settings):
    ran(orders, "shop.mail", 1.0)
    url = reverse("admin:django_pgqueue_queue_tasks", args=[Queue.objects.get().pk])
    assert operator.get(url).status_code == 200
    settings.PGQUEUE = {"QUEUES_FOR": "tests.admin.access.ours"}

    assert operator.get(url).status_code == 404
