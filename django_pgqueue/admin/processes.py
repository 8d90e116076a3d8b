"""The admin of consumer processes, live and gone, and the health of the database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import URLPattern
from django.utils.translation import gettext as _

from django_pgqueue.admin import places
from django_pgqueue.admin.access import allowed, queues_for
from django_pgqueue.admin.base import RecordAdmin
from django_pgqueue.admin.health import HealthPage
from django_pgqueue.admin.page import Page
from django_pgqueue.database.runner import runner
from django_pgqueue.engine.audit.entry import record
from django_pgqueue.models import Message, Process
from django_pgqueue.tables.process import DEAD_AFTER, GONE_KEPT, ago
from django_pgqueue.templatetags.pgqueue_admin import seconds_since

#: Maximum number of running messages that are looked up, over all consumers.
IN_HAND = 500


class ConsumersPage(Page):
    """The list of consumers: the oldest heartbeat first, gone processes last."""

    name = "process_changelist"
    template = "consumers"

    def answer(self) -> HttpResponse:
        processes = self.owner.get_queryset(self.request).order_by(
            F("gone_at").desc(nulls_first=True), "heartbeat_at", "pk"
        )
        queues = dict(queues_for(self.request).values_list("name", "pk"))
        held = self._held(processes, queues)
        may_quiet, may_see_stacks = self.may(QuietPage), self.may(StacksPage)
        return self.render_live(
            {
                "title": _("Consumers"),
                "rows": [
                    {
                        "process": process,
                        "look": look_of(process),
                        "queues": [name for name in process.queues if name in queues],
                        "held": [
                            (*held[pk], runs_of(process).get(pk))
                            for pk in ids_held(process)
                            if pk in held
                        ],
                        "may_quiet": may_quiet and sees_all(process, self.request),
                        "may_see_stacks": may_see_stacks and sees_all(process, self.request),
                    }
                    for process in processes
                ],
            }
        )

    def _held(
        self, processes: Iterable[Process], queues: Mapping[str, int]
    ) -> dict[int, tuple[str, str, Any]]:
        """Return the messages in progress, by id: a link, the queue's name, the delivery time."""
        chosen = sorted({pk for process in processes for pk in ids_held(process)})[:IN_HAND]
        names = {pk: name for name, pk in queues.items()}
        # A subscription's own copy has its source's id: the one that is in flight counts.
        rows = Message.objects.filter(pk__in=chosen, queue_id__in=list(names))
        found = list(rows.only("pk", "queue_id", "priority", "group_key")) if chosen else []
        standing = places.standing(found) if found else {}
        return {
            message.pk: (
                self.owner.message_link(message.pk, message.queue_id),
                names[message.queue_id],
                at.last_read_at,
            )
            for message in found
            # Otherwise it was settled meanwhile, or another queue's consumer holds it.
            if (at := standing.get((message.pk, message.queue_id))) and at.leased
        }


def look_of(process: Process) -> tuple[str, str]:
    """Return the CSS class and the name of a process's state."""
    if process.gone_at is not None:
        return "bad", _("gone")
    if seconds_since(process.heartbeat_at) > DEAD_AFTER:
        return "bad", _("no heartbeat")
    if process.stopping:
        return "", _("stopping")
    return ("warning", _("quiet")) if process.quiet else ("", _("running"))


def sees_all(process: Process, request: HttpRequest) -> bool:
    """Return whether a process is live, and the user may see all of its queues."""
    seen = allowed(request)
    return process.gone_at is None and (seen is None or set(process.queues) <= set(seen.values()))


def ids_held(process: Process, queue: str | None = None) -> list[int]:
    """Return the ids of the messages that a process works on, in one queue or in all queues.

    Ignores malformed values of ``working_on``.
    """
    held = process.working_on if isinstance(process.working_on, dict) else {}
    lists = held.values() if queue is None else [held.get(queue)]
    return [pk for ids in lists if isinstance(ids, list) for pk in ids if isinstance(pk, int)]


def runs_of(process: Process) -> dict[int, tuple[str, float]]:
    """Return, by message id, what a process runs and for how many seconds.

    Ignores malformed values of ``runs``.
    """
    found = {}
    since = seconds_since(process.heartbeat_at)
    for run in process.runs if isinstance(process.runs, list) else []:
        if isinstance(run, dict):
            pk, what, seconds = run.get("message"), run.get("what"), run.get("seconds")
            if isinstance(pk, int) and isinstance(what, str) and isinstance(seconds, (int, float)):
                found[pk] = (what, seconds + since)
    return found


class StacksPage(Page):
    """Shows where the handlers of a process are in the code. A POST asks the process for it."""

    name = "process_stacks"
    route = "<int:pk>/stacks/"
    permission = "view_stack"
    template = "stacks"

    def answer(self, pk: int) -> HttpResponse:
        process = get_object_or_404(self.owner.get_queryset(self.request), pk=pk)
        if not sees_all(process, self.request):
            raise PermissionDenied
        if self.request.method == "POST":
            Process.objects.filter(pk=pk).update(stacks_wanted=True)
            return HttpResponseRedirect(self.url("process_stacks", pk))
        title = _("Stacks of %s") % process
        return self.render_live({"title": title, "process": process, "is_list": False})


class QuietPage(Page):
    """Makes a process stop fetching messages. The process finishes the messages that it holds."""

    name = "process_quiet"
    route = "<int:pk>/quiet/"
    permission = "quiet_process"
    is_post = True
    quiet = True

    def answer(self, pk: int) -> HttpResponse:
        process = get_object_or_404(self.owner.get_queryset(self.request), pk=pk)
        if not sees_all(process, self.request):
            raise PermissionDenied
        with transaction.atomic(using=process._state.db):
            Process.objects.filter(pk=pk).update(quiet=self.quiet)
            operation = "quiet" if self.quiet else "wake"
            record(runner(str(process._state.db)), operation, None, {"process": str(process)})
        told = (
            _("Process %s fetches no more messages, and finishes those that it has.")
            if self.quiet
            else _("Process %s fetches messages again.")
        )
        self.tell(told % process)
        return HttpResponseRedirect(self.url("process_changelist"))


class WakePage(QuietPage):
    """Lets a quiet process fetch messages again."""

    name = "process_wake"
    route = "<int:pk>/wake/"
    quiet = False


@admin.register(Process)
class ProcessAdmin(RecordAdmin):
    """Consumer processes: all live ones, and those found dead in the last day."""

    list_page = ConsumersPage
    pages: Sequence[type[Page]] = (HealthPage, QuietPage, WakePage, StacksPage)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Process]:
        rows = Process.every.filter(Q(gone_at=None) | Q(gone_at__gte=ago(GONE_KEPT)))
        seen = allowed(request)
        if seen is None:
            return rows
        return rows.filter(queues__has_any_keys=list(seen.values())) if seen else rows.none()

    def get_urls(self) -> list[URLPattern]:
        pages: list[type[Page]] = [ConsumersPage, *self.pages]
        own = {f"django_pgqueue_{page.name}" for page in pages}
        return [url for url in super().get_urls() if url.name in own]
