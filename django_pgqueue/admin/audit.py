"""The audit log in the admin: who did what to which queue, from where, and on how many messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue.admin.access import allowed, queues_for
from django_pgqueue.admin.base import PageAdmin, RecordAdmin, column
from django_pgqueue.admin.masking import mask
from django_pgqueue.models import AuditEntry
from django_pgqueue.templatetags.pgqueue_admin import EMPTY, cut, linked, number, visible, when

#: The names of the operations.
OPERATIONS = {
    "purge": gettext_lazy("Purge"),
    "redrive": gettext_lazy("Redrive"),
    "replay": gettext_lazy("Send again"),
    "subscribe": gettext_lazy("Subscribe"),
    "seek": gettext_lazy("Seek"),
    "load": gettext_lazy("Load files"),
    "cancel": gettext_lazy("Cancel"),
    "delete": gettext_lazy("Delete"),
    "discard": gettext_lazy("Discard"),
    "archive": gettext_lazy("Archive"),
    "readable": gettext_lazy("Make readable now"),
    "set_vt": gettext_lazy("Change the time"),
    "send": gettext_lazy("Send"),
    "run": gettext_lazy("Run now"),
    "run_missed": gettext_lazy("Send a missed tick"),
    "create": gettext_lazy("Create"),
    "alter": gettext_lazy("Change"),
    "reset": gettext_lazy("Reset"),
    "pause": gettext_lazy("Pause"),
    "resume": gettext_lazy("Resume"),
    "stop": gettext_lazy("Stop"),
    "drop": gettext_lazy("Drop"),
    "quiet": gettext_lazy("Stop fetching"),
    "wake": gettext_lazy("Fetch again"),
}
PLACES = {
    "admin": gettext_lazy("admin"),
    "command": gettext_lazy("command"),
    "code": gettext_lazy("code"),
    "sql": gettext_lazy("SQL"),
}
#: Maximum number of ids, and of characters of a value, that a row shows.
MOST_SHOWN, LONGEST = 5, 60

#: The argument of an entry whose count is an estimate.
_ESTIMATE = "estimate"


def details(entry: AuditEntry, owner: PageAdmin) -> str:
    """Return what an entry says besides its columns, as HTML. A change is "old → new".

    Leaves out the empty settings of what was created. ``owner`` is a model admin, for links.
    """
    return format_html_join(", ", "{}: {}", _pairs(entry, mask(entry.arguments), owner))


def _pairs(entry: AuditEntry, given: Any, owner: PageAdmin) -> Iterator[tuple[str, Any]]:
    for key, value in given.items() if isinstance(given, Mapping) else ():
        if key == "bulk_action":
            yield _("bulk action"), linked(owner.url("bulkaction_change", value), value)
        elif key == "batch":
            yield _("batch"), linked(owner.url("batch_change", value), value)
        elif key == "copy_of":
            yield _("copy of"), owner.message_link(value, entry.queue_id or 0)
        elif isinstance(value, list) and (key == "ids" or (key == "copies" and "to" not in given)):
            links = [(owner.message_link(pk, entry.queue_id or 0),) for pk in value[:MOST_SHOWN]]
            more = ", …" if len(value) > MOST_SHOWN or "of" in given else ""
            name = _("messages") if key == "ids" else _("copies")
            yield name, format_html("{}{}", format_html_join(", ", "{}", links), more)
        elif key not in ("of", "source_id", _ESTIMATE) and not (
            entry.operation == "create" and value in ("", None)
        ):
            changes = entry.operation in ("alter", "reset")
            is_change = changes and isinstance(value, list) and len(value) == 2
            yield key, " → ".join(map(_plain, value)) if is_change else _plain(value)


def _plain(value: Any) -> str:
    return EMPTY if value is None else cut(visible(str(value)), LONGEST)


class QueueFilter(admin.SimpleListFilter):
    """The entries of one queue, to which the queue's page links."""

    title = gettext_lazy("queue")
    parameter_name = "queue"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        value = self.value()
        if not (value and value.isdecimal()):
            return []
        name = queues_for(request).filter(pk=value).values_list("name", flat=True).first()
        return [(value, name or value)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        return queryset.filter(queue_id=value) if value and value.isdecimal() else queryset


class OperationFilter(admin.SimpleListFilter):
    """The entries of one operation."""

    title = gettext_lazy("operation")
    parameter_name = "operation"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return list(OPERATIONS.items())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(operation=self.value()) if self.value() else queryset


@admin.register(AuditEntry)
class AuditEntryAdmin(RecordAdmin):
    """The log of operations, the latest first. Nobody changes it here."""

    list_display = ["when_done", "who_did", "what", "in_queue", "how_many", "how", "from_where"]
    list_display_links = None
    list_filter = [QueueFilter, OperationFilter]

    def get_queryset(self, request: HttpRequest) -> QuerySet[AuditEntry]:
        rows = super().get_queryset(request)
        seen = allowed(request)
        return rows if seen is None else rows.filter(queue_id__in=list(seen))

    when_done = column(gettext_lazy("when"), lambda entry: when(entry.at))
    who_did = column(gettext_lazy("who"), lambda entry: cut(visible(entry.who), 80))
    what = column(
        gettext_lazy("operation"), lambda entry: OPERATIONS.get(entry.operation, entry.operation)
    )

    @admin.display(description=gettext_lazy("queue"))
    def in_queue(self, entry: AuditEntry) -> str:
        name = visible(entry.queue_name)
        return self.queue_link(entry.queue_id, name) if entry.queue_id else name

    @admin.display(description=gettext_lazy("messages"))
    def how_many(self, entry: AuditEntry) -> str:
        if entry.count is None:
            return EMPTY
        told = number(entry.count, exact=_ESTIMATE not in entry.arguments)
        return told if entry.ended_at else _("%s so far") % told

    @admin.display(description=gettext_lazy("details"))
    def how(self, entry: AuditEntry) -> str:
        return details(entry, self)

    @admin.display(description=gettext_lazy("from"))
    def from_where(self, entry: AuditEntry) -> str:
        program = "" if entry.place == "admin" else entry.program
        role = _("role %s") % entry.role
        place = str(PLACES.get(entry.place, entry.place))
        return ", ".join(visible(each) for each in (place, program, entry.host, role) if each)


def of_message(pk: int, queue_id: int) -> QuerySet[AuditEntry]:
    """Return the entries that name a message of a queue, the latest first."""
    named = Q(arguments__contains={"ids": [pk]}) | Q(arguments__contains={"copy_of": pk})
    return AuditEntry.objects.filter(named, queue_id=queue_id)
