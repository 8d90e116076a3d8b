"""The admin of bulk actions: their list, and the page that runs one."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Exists, OuterRef, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.utils.translation import gettext_lazy

from django_pgqueue.admin.access import allowed
from django_pgqueue.admin.base import PageAdmin, RecordAdmin, column
from django_pgqueue.admin.bulk_actions import STATES, WORDS, drive, may, progress
from django_pgqueue.admin.page import Page
from django_pgqueue.engine.wording import age
from django_pgqueue.models import BulkAction, Queue
from django_pgqueue.queues.bulk import Kind
from django_pgqueue.templatetags.pgqueue_admin import cut, number, when


class BulkActionPage(Page):
    """The page of one bulk action. While it is open, it runs steps if the user has permission."""

    template = "bulk_action"

    def answer(self, object_id: str) -> HttpResponse:
        if self.request.method != "GET":
            raise PermissionDenied
        if not object_id.isdecimal():
            return HttpResponseRedirect(self.url("bulkaction_changelist"))
        bulk_action = get_object_or_404(self.owner.get_queryset(self.request), pk=object_id)
        ended = bulk_action.finished_at or bulk_action.stepped_at
        taken = (ended - bulk_action.created_at).total_seconds() if ended else 0.0
        return self.render_live(
            {
                "title": f"{self.owner.action(bulk_action)}: {bulk_action.queue_name}",
                "is_list": False,
                "bulk_action": bulk_action,
                "state": STATES[bulk_action.state],
                "queue_link": self.owner.in_queue(bulk_action),
                "changed": str(WORDS[Kind(bulk_action.kind)].done),
                "chosen": ", ".join(
                    f"{name}={value}" for name, value in bulk_action.filter.items()
                ),
                "progress": progress(bulk_action),
                "percent": 100
                * (bulk_action.count - bulk_action.left)
                // max(1, bulk_action.count),
                "taken": age(taken),
                "may": may(self.request, Kind(bulk_action.kind)) and bulk_action.has_queue,
                "is_running": bulk_action.state == BulkAction.RUNNING,
                "is_stopped": bulk_action.state == BulkAction.STOPPED,
                "may_resume": bulk_action.state in (BulkAction.STOPPED, BulkAction.FAILED),
            },
        )


class _StepPage(Page):
    """Acts on one bulk action, and redirects to its page."""

    is_post = True

    @classmethod
    def permits(cls, owner: PageAdmin, request: HttpRequest) -> bool:
        return True  # answer() checks the permission for the kind of action.

    def answer(self, pk: int) -> HttpResponse:
        bulk_action = get_object_or_404(self.owner.get_queryset(self.request), pk=pk)
        if not may(self.request, Kind(bulk_action.kind)):
            raise PermissionDenied
        if not bulk_action.has_queue:
            raise Http404
        self.act(bulk_action)
        return HttpResponseRedirect(self.url("bulkaction_change", pk))

    def act(self, bulk_action: BulkAction) -> None:
        raise NotImplementedError


class StepPage(_StepPage):
    """Runs steps for ``SECONDS``, unless another process runs them."""

    name = "bulkaction_step"
    route = "<int:pk>/step/"

    def act(self, bulk_action: BulkAction) -> None:
        drive([bulk_action])


class StopPage(_StepPage):
    """Stops a bulk action."""

    name = "bulkaction_stop"
    route = "<int:pk>/stop/"

    def act(self, bulk_action: BulkAction) -> None:
        bulk_action.stop()


class ResumePage(_StepPage):
    """Resumes a bulk action."""

    name = "bulkaction_resume"
    route = "<int:pk>/resume/"

    def act(self, bulk_action: BulkAction) -> None:
        if bulk_action.resume():
            drive([bulk_action])


@admin.register(BulkAction)
class BulkActionAdmin(RecordAdmin):
    """The list of bulk actions, with their progress and the number of changed messages."""

    list_display = [
        *("id", "action", "in_queue", "state_now", "progress", "changed", "who", "begun_at"),
    ]
    change_page = BulkActionPage
    pages = [StepPage, StopPage, ResumePage]

    def get_queryset(self, request: HttpRequest) -> QuerySet[BulkAction]:
        # Bulk actions stay when their queue is dropped.
        known = Exists(Queue.objects.filter(pk=OuterRef("queue_id")))
        rows: QuerySet[Any] = super().get_queryset(request).annotate(has_queue=known)
        seen = allowed(request)
        return rows if seen is None else rows.filter(queue_id__in=list(seen))

    action = column(gettext_lazy("action"), lambda act: str(WORDS[Kind(act.kind)].title))
    state_now = column(gettext_lazy("state"), lambda act: str(STATES[act.state]))
    progress = column(gettext_lazy("progress"), progress)
    changed = column(gettext_lazy("changed"), lambda act: number(act.done))
    who = column(gettext_lazy("requested by"), lambda act: cut(act.username, 80))
    begun_at = column(gettext_lazy("started at"), lambda act: when(act.created_at))

    @admin.display(description=gettext_lazy("queue"))
    def in_queue(self, bulk_action: Any) -> str:
        name = str(bulk_action.queue_name)
        return self.queue_link(bulk_action.queue_id, name) if bulk_action.has_queue else name
