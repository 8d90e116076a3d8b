"""The pages that act on one queue: pause, resume, purge and redrive."""

from __future__ import annotations

from typing import ClassVar

from django.http import HttpResponse, HttpResponseRedirect
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext

from django_pgqueue.admin.bulk_actions import DELETING, WORDS, Action, Job
from django_pgqueue.admin.page import QueuePage
from django_pgqueue.admin.search import Backlog
from django_pgqueue.queues.bulk import Kind


class PausePage(QueuePage):
    """Pauses a queue. Accepts only POST requests."""

    name = "queue_pause"
    route = "<int:pk>/pause/"
    permission = "pause_queue"
    is_post = True
    paused = True

    def answer(self, pk: int) -> HttpResponse:
        queue = self.queue(pk)
        if queue.paused != self.paused:
            queue.paused = self.paused
            queue.save(update_fields=["paused"])
        done = (
            gettext("Paused %s: consumers do not read from it.")
            if self.paused
            else gettext("Resumed %s.")
        )
        self.tell(done % queue)
        return HttpResponseRedirect(self._back() or self.url("queue_changelist"))

    def _back(self) -> str | None:
        """Return the posted URL ``back`` if it is on this site, else None."""
        back = self.request.POST.get("back", "")
        safe = url_has_allowed_host_and_scheme(
            back, allowed_hosts={self.request.get_host()}, require_https=self.request.is_secure()
        )
        return back if safe else None


class ResumePage(PausePage):
    """Resumes a queue."""

    name = "queue_resume"
    route = "<int:pk>/resume/"
    paused = False


class _BacklogPage(QueuePage):
    """Asks for confirmation, then acts on all messages in the queue."""

    kind: ClassVar[Kind]

    def answer(self, pk: int) -> HttpResponse:
        queue = self.queue(pk)
        return Action(
            self,
            [Job(self.kind, Backlog(queue.pk))],
            back=self.url("queue_overview", pk),
            title=f"{WORDS[self.kind].title} {queue}",
            typed=queue.name if self.kind in DELETING else "",
            ask=True,
        ).answer()


class PurgePage(_BacklogPage):
    """Deletes the messages in the queue."""

    name = "queue_purge"
    route = "<int:pk>/purge/"
    permission = "purge_queue"
    kind = Kind.PURGE


class RedrivePage(_BacklogPage):
    """Redrives the dead letters in the queue."""

    name = "queue_redrive"
    route = "<int:pk>/redrive/"
    permission = "redrive_message"
    kind = Kind.REDRIVE
