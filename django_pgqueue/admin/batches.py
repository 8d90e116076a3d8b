"""The admin of batches: their list, the page of one, and what other pages show of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.text import capfirst
from django.utils.timezone import now
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue.admin.access import allowed, names_for, queues_for
from django_pgqueue.admin.base import RecordAdmin
from django_pgqueue.admin.overview import is_name_seen
from django_pgqueue.admin.page import Page
from django_pgqueue.admin.search import is_number
from django_pgqueue.engine.wording import age
from django_pgqueue.errors import error_line
from django_pgqueue.flows.batches import HEADER
from django_pgqueue.models import Batch, Message, Queue
from django_pgqueue.queues.batch import id_in
from django_pgqueue.templatetags.pgqueue_admin import counted, cut, linked, number

#: Maximum number of characters that a page shows of a name, and of an error in a list.
NAME, ERROR = 80, 200

OUTCOMES = {
    "open": gettext_lazy("takes members"),
    "running": gettext_lazy("running"),
    "done": gettext_lazy("done"),
    "cancelled": gettext_lazy("cancelled"),
    "abandoned": gettext_lazy("abandoned"),
}
#: The names of the counts, in the order of ``Batch.counts``.
COUNTS = {
    "completed": gettext_lazy("completed"),
    "failed": gettext_lazy("failed"),
    "dead_lettered": gettext_lazy("dead-lettered"),
    "cancelled": gettext_lazy("cancelled"),
    "expired": gettext_lazy("expired"),
    "replaced": gettext_lazy("replaced"),
    "deleted": gettext_lazy("deleted"),
}
#: The tabs of the list, by the value of ``state`` in its URL.
STATES = {
    "": gettext_lazy("All"),
    "open": gettext_lazy("In progress"),
    "done": gettext_lazy("Done"),
}


@dataclass(frozen=True)
class Shown:
    """A batch as a page shows it."""

    batch: Batch
    seen: Collection[str] | None

    @property
    def outcome(self) -> str:
        return str(OUTCOMES[self.batch.outcome])

    @property
    def name(self) -> str:
        return cut(self.batch.name, NAME)

    @property
    def ended(self) -> str:
        """How many members have ended, as text."""
        told = {"number": number(self.batch.ended), "most": number(self.batch.members)}
        return _("%(number)s of %(most)s") % told

    @property
    def percent(self) -> int:
        return int(100 * self.batch.progress)

    @property
    def lasts(self) -> str:
        """How long it took until it was done, or takes so far."""
        ended = self.batch.done_at or now()
        return age((ended - self.batch.created_at).total_seconds())

    @property
    def error(self) -> str:
        """Why its callback could not be sent, if the user may see the callback's queue."""
        return self.batch.error if is_name_seen(self.batch.then_queue, self.seen) else ""

    @property
    def first_line(self) -> str:
        """The line that names the error, for a list."""
        return cut(error_line(self.error), ERROR)


class BatchesPage(Page):
    """The batches, the newest first."""

    name = "batch_changelist"
    template = "batches"

    def answer(self) -> HttpResponse:
        given, length = self.request.GET, self.owner.list_per_page
        rows = self.owner.get_queryset(self.request).select_related("queue").defer("callback")
        state = given.get("state", "") if given.get("state") in STATES else ""
        if state:
            rows = rows.filter(done_at__isnull=state == "open")
        if queue := given.get("queue", ""):
            rows = rows.filter(queue=int(queue)) if is_number(queue, 2**31) else rows.none()
        if is_after := is_number(given.get("before", ""), 2**63):
            rows = rows.filter(pk__lt=int(given["before"]))
        found = list(rows[: length + 1])
        chosen = {"state": state, "queue": queue}
        following = found[length - 1].pk if len(found) > length else ""
        seen = names_for(self.request)
        return self.render_live(
            {
                "title": _("Batches"),
                "tabs": [
                    (name, _address(**{**chosen, "state": each}), each == state)
                    for each, name in STATES.items()
                ],
                "rows": [
                    (Shown(each, seen), self.owner.queue_link(each.queue_id, each.queue))
                    for each in found[:length]
                ],
                "given": chosen,
                "queues": queues_for(self.request).order_by("name").values_list("pk", "name"),
                "first": _address(**chosen) if is_after else "",
                "next": _address(**chosen, before=following) if following else "",
            }
        )


def _address(**given: str | int) -> str:
    """Return the URL of the list with these filters."""
    return f"?{urlencode({name: value for name, value in given.items() if value})}"


class BatchPage(Page):
    """One batch: its counts, its callback, and its times."""

    template = "batch"

    def answer(self, object_id: str) -> HttpResponse:
        if self.request.method not in ("GET", "HEAD"):
            raise PermissionDenied
        if not is_number(object_id, 2**63):
            return HttpResponseRedirect(self.url("batch_changelist"))
        rows = self.owner.get_queryset(self.request).select_related("queue").defer("callback")
        batch = get_object_or_404(rows, pk=object_id)
        shown = Shown(batch, names_for(self.request))
        return self.render_live(
            {
                "title": capfirst(str(batch)) + (f": {shown.name}" if shown.name else ""),
                "is_list": False,
                "batch": batch,
                "shown": shown,
                "queue_link": self.owner.queue_link(batch.queue_id, batch.queue),
                "counts": [
                    (name, number(batch.counts[each]), each in ("failed", "dead_lettered"))
                    for each, name in COUNTS.items()
                ],
                "left": number(batch.members - batch.ended),
                **self._callback(batch),
                "messages_url": self._messages_url(batch),
                "cancel_url": self.url("batch_cancel", batch.pk)
                if batch.done_at is None and self.may(CancelPage)
                else "",
            }
        )

    def _callback(self, batch: Batch) -> dict[str, Any]:
        """Return the callback's queue and message, as links if the user may see the queue."""
        if not batch.then_queue:
            return {}
        queue = Queue.objects.using(batch.queue.alias).named(batch.then_queue).first()
        seen = allowed(self.request)
        if queue is None or (seen is not None and queue.pk not in seen):
            name = batch.then_queue if seen is None else _("another queue")
            return {"called": name, "message_link": str(batch.callback_id or "")}
        return {
            "called": self.owner.queue_link(queue.pk, queue),
            "message_link": batch.callback_id
            and self.owner.message_link(batch.callback_id, queue.pk),
        }

    def _messages_url(self, batch: Batch) -> str:
        """Return the URL of a search for the members, or "" if the user may not see messages."""
        site = self.owner.admin_site
        if not site.is_registered(Message):
            return ""
        if not site.get_model_admin(Message).has_view_permission(self.request):
            return ""
        query = {"queue": batch.queue_id, "q": f"headers.{HEADER}:{batch.pk}"}
        return self.url("message_changelist", **query)


class CancelPage(Page):
    """Asks for confirmation, then cancels a batch."""

    name = "batch_cancel"
    route = "<int:pk>/cancel/"
    permission = "change_batch"
    template = "confirm_action"

    def answer(self, pk: int) -> HttpResponse:
        rows = self.owner.get_queryset(self.request).select_related("queue")
        batch, back = get_object_or_404(rows, pk=pk), self.url("batch_change", pk)
        if batch.done_at is None and self.request.POST.get("confirmed") != "yes":
            return self.render(
                {
                    "title": _("Cancel %s") % batch,
                    "is_list": False,
                    "questions": self._questions(batch),
                    "back": back,
                }
            )
        if batch.done_at is None and batch.cancel():
            self.tell(_("Cancelled %s.") % batch)
        else:
            self.tell(_("The batch is done: there was nothing to cancel."), messages.WARNING)
        return HttpResponseRedirect(back)

    @staticmethod
    def _questions(batch: Batch) -> list[str]:
        asked = _("Cancel {batch} of {queue}, with {messages} that have not ended?")
        left = counted(batch.members - batch.ended)
        told = _("Messages in flight are cancelled too. The archive keeps all of them.")
        questions = [format_html(asked, batch=batch, queue=batch.queue, messages=left), told]
        if batch.then_queue:
            questions.append(_("The callback is sent. It says that the batch was cancelled."))
        return questions


@admin.register(Batch)
class BatchAdmin(RecordAdmin):
    """Batches, with the number of their messages that have ended, and their callbacks."""

    part = "batches"
    list_page = BatchesPage
    change_page = BatchPage
    pages = [CancelPage]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Batch]:
        rows = super().get_queryset(request)
        seen = allowed(request)
        return rows if seen is None else rows.filter(queue__in=list(seen))


def _batches_for(page: Page) -> QuerySet[Batch] | None:
    """Return the batches that the user of a page may see. None: he may see no page of them."""
    site = page.owner.admin_site
    if not site.is_registered(Batch):
        return None
    owner = site.get_model_admin(Batch)
    rows: QuerySet[Batch] = owner.get_queryset(page.request)
    return rows if owner.has_view_permission(page.request) else None


def batch_link(page: Page, headers: Any) -> str:
    """Return a link to the batch that a message is a member of, or the callback of; else ""."""
    pk = id_in(headers)
    if pk is None or (rows := _batches_for(page)) is None:
        return ""
    batch = rows.filter(pk=pk).only("pk", "name").first()
    if batch is None:
        return ""
    text = f"{batch.pk}: {cut(batch.name, NAME)}" if batch.name else str(batch.pk)
    return linked(page.url("batch_change", batch.pk), text)


def batches_url(page: Page, queue: Queue) -> str:
    """Return the URL of a queue's open batches, or "" if the user may not see them."""
    if _batches_for(page) is None:
        return ""
    return page.url("batch_changelist", queue=queue.pk, state="open")
