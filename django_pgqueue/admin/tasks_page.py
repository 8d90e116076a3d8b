"""The page of a queue's tasks: how long each ran, and how often it failed, in a sample."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from django.http import HttpResponse
from django.utils.http import urlencode
from django.utils.translation import gettext as _

from django_pgqueue.admin.charts import Histogram
from django_pgqueue.admin.page import QueuePage
from django_pgqueue.admin.queries import ask
from django_pgqueue.admin.suggestions import SMALL
from django_pgqueue.history.histograms import bucket
from django_pgqueue.models import Queue
from django_pgqueue.templatetags.pgqueue_admin import cut, number
from django_pgqueue.types import State

#: How many messages that ended are looked at, and the most characters of a task's path.
LOOK, LENGTH = 1000, 300


class Runs(NamedTuple):
    """The messages of one task that ended, in the sample."""

    task: str
    number: int
    failed: int
    seconds: list[float]  # The run times of the successful ones, in order.

    @property
    def median(self) -> float | None:
        return self._quantile(0.5)

    @property
    def p95(self) -> float | None:
        return self._quantile(0.95)

    @property
    def longest(self) -> float | None:
        return self._quantile(1)

    def _quantile(self, share: float) -> float | None:
        if not self.seconds:
            return None
        return self.seconds[min(int(share * len(self.seconds)), len(self.seconds) - 1)]


class TasksPage(QueuePage):
    """The tasks of a queue, those with most runs first, and the run times of one as a histogram."""

    name = "queue_tasks"
    route = "<int:pk>/tasks/"
    template = "tasks"

    def answer(self, pk: int) -> HttpResponse:
        queue = self.queue(pk)
        found, unread = runs_of_tasks(queue)
        given = self.request.GET.get("task", "")
        chosen = next((each for each in found if each.task == given), None)
        if chosen is None and found and not given:
            chosen = found[0]
        return self.render_live(
            {
                "title": _("Tasks of %s") % queue,
                "is_list": False,
                "queue_link": self.owner.queue_link(pk, queue),
                "tasks": [(each, f"?{urlencode({'task': each.task})}") for each in found],
                "chosen": chosen,
                "given": "" if chosen else cut(given, LENGTH),
                "histogram": chosen and _histogram(chosen),
                "messages_url": chosen and self._messages_url(queue, chosen.task),
                "look": LOOK,
                "unread": unread,
            }
        )

    def _messages_url(self, queue: Queue, task: str) -> str:
        """Return the URL of the list of the task's messages; "" if a search cannot name it."""
        if any(each in task for each in " ,\t\n"):
            return ""
        return self.url("message_changelist", queue=queue.pk, q=f"body.task:{task}")


def runs_of_tasks(queue: Queue) -> tuple[list[Runs], int]:
    """Return the tasks in the sample, and the number of messages whose body is too large."""
    params = {"look": LOOK, "small": SMALL, "length": LENGTH}
    counts, failed = Counter[str](), Counter[str]()
    seconds: dict[str, list[float]] = {}
    unread = 0
    for task, state, lasted in ask("tasks", params, **queue.tables):
        if task is None:
            unread += 1
            continue
        counts[task] += 1
        failed[task] += state == State.FAILED
        seconds.setdefault(task, []).extend([] if lasted is None else [lasted])
    found = [Runs(task, n, failed[task], sorted(seconds[task])) for task, n in counts.items()]
    return sorted(found, key=lambda each: (-each.number, each.task)), unread


def _histogram(runs: Runs) -> Any:
    about = _("%(count)s successful runs among the newest %(look)s messages that ended.")
    counts = Counter(str(bucket(each)) for each in runs.seconds)
    told = {"count": number(len(runs.seconds)), "look": number(LOOK)}
    return Histogram(_("Run times of %s") % cut(runs.task, LENGTH), about % told, counts)
