"""The admin of schedules. Users change, pause and run them without restarting consumers."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.widgets import AdminTextInputWidget
from django.db import models
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.utils.dateparse import parse_datetime
from django.utils.html import format_html, format_html_join
from django.utils.timezone import is_naive, make_aware, now
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue.admin import generic
from django_pgqueue.admin.access import allowed
from django_pgqueue.admin.base import PageAdmin
from django_pgqueue.admin.durations import SpanField
from django_pgqueue.admin.json_text import JSONText
from django_pgqueue.admin.once import Once
from django_pgqueue.admin.page import Page
from django_pgqueue.admin.queries import ask
from django_pgqueue.errors import PgQueueError
from django_pgqueue.models import Schedule
from django_pgqueue.templatetags.pgqueue_admin import EMPTY, when
from django_pgqueue.types import was_skipped

#: The number of ticks shown, and of the newest messages that are searched for past ticks.
TICKS, LOOK = 5, 2000


class SchedulesPage(Page):
    """All schedules by name, with their times and buttons."""

    name = "schedule_changelist"
    template = "schedules"

    def answer(self) -> HttpResponse:
        rows = self.owner.get_queryset(self.request).select_related("queue").order_by("name")
        return self.render_live(
            {
                "title": _("Schedules"),
                "rows": [(each, self.owner.queue_link(each.queue_id, each.queue)) for each in rows],
                "now": now(),
                "may_change": self.owner.has_change_permission(self.request),
                "has_add_permission": self.owner.has_add_permission(self.request),
            }
        )


class _SchedulePage(Page):
    """Acts on one schedule, and redirects to the page with the button."""

    permission = "change_schedule"
    is_post = True

    def answer(self, pk: int) -> HttpResponse:
        schedule = get_object_or_404(self.owner.get_queryset(self.request), pk=pk)
        self.act(schedule)
        on_page = "of_page" in self.request.POST
        return HttpResponseRedirect(
            self.url("schedule_change", pk) if on_page else self.url("schedule_changelist")
        )

    def act(self, schedule: Schedule) -> None:
        raise NotImplementedError


class RunPage(_SchedulePage):
    """Sends a schedule's message now. The schedule's ticks do not change."""

    name = "schedule_run"
    route = "<int:pk>/run/"

    def act(self, schedule: Schedule) -> None:
        once = Once(self.request)
        if once.sent is not None:
            self.tell(Once.repeated(self._link(schedule, once.sent[1])), messages.WARNING)
            return
        try:
            sent = schedule.run(**once.options)
        except PgQueueError as error:
            self.tell(str(error), messages.ERROR)
            return
        link = self._link(schedule, sent)
        if was_skipped(sent):
            told = _("Nothing was sent: message {id} of {queue} has this unique key.")
            held = format_html(told, id=link, queue=schedule.queue)
            self.tell(held if schedule.unique_key else Once.repeated(link), messages.WARNING)
            return
        once.remember(schedule.queue_id, sent)
        told = _("Sent message {id} to {queue}.")
        self.tell(format_html(told, id=link, queue=schedule.queue))

    def _link(self, schedule: Schedule, sent: int) -> str:
        return str(self.owner.message_link(sent, schedule.queue_id))


class PausePage(_SchedulePage):
    """Pauses a schedule."""

    name = "schedule_pause"
    route = "<int:pk>/pause/"
    paused = True

    def act(self, schedule: Schedule) -> None:
        schedule.paused = self.paused
        if schedule.ended_at is not None and not self.paused:
            # Forget the declaration. Otherwise a consumer would end the schedule again, as one that
            # no process declares.
            schedule.ended_at = schedule.declared = None
        try:
            schedule.save()
        except PgQueueError as error:
            self.tell(str(error), messages.ERROR)
            return
        self.tell((_("Paused %s.") if self.paused else _("Resumed %s.")) % schedule)


class ResumePage(PausePage):
    """Resumes a schedule that was paused, or has ended."""

    name = "schedule_resume"
    route = "<int:pk>/resume/"
    paused = False


class ScheduleForm(generic.ModelForm):
    """The settings of a schedule."""

    interval = SpanField(
        required=False,
        label=gettext_lazy("Interval"),
        help_text=gettext_lazy(
            "Instead of cron: the time between two messages, such as 20s or 1d."
        ),
    )
    expires = SpanField(
        required=False,
        label=gettext_lazy("Expires"),
        help_text=gettext_lazy(
            "How long after the send the message may be handled, such as 10min. "
            "Empty: it never expires."
        ),
    )
    body = JSONText(
        required=False,
        label=gettext_lazy("Body"),
        widget=forms.Textarea(attrs={"rows": 4, "cols": 60, "spellcheck": "false"}),
    )

    class Meta:
        model = Schedule
        fields = [
            *("name", "queue", "paused", "cron", "interval", "time_zone", "missed"),
            *("body", "priority", "expires", "group_key", "unique_key", "until"),
        ]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk:
            self.initial["body"] = JSONText.shown(self.instance.body)


@admin.register(Schedule)
class ScheduleAdmin(PageAdmin):
    """All schedules. A change to a declared schedule lasts until its declaration changes."""

    part = "schedules"
    form = ScheduleForm
    formfield_overrides = {models.TextField: {"widget": AdminTextInputWidget}}
    list_page = SchedulesPage
    pages = [RunPage, PausePage, ResumePage]
    change_form_template = "admin/django_pgqueue/schedule.html"
    readonly_fields = ["next_ticks", "last_ticks", "error", "is_declared", "ended_at"]
    fieldsets = [
        (None, {"fields": ["name", "queue", "paused"]}),
        (gettext_lazy("When"), {"fields": ["cron", "interval", "time_zone", "missed"]}),
        (
            gettext_lazy("Message"),
            {"fields": ["body", "priority", "expires", "group_key", "unique_key", "until"]},
        ),
        (gettext_lazy("Runs"), {"fields": [*readonly_fields]}),
    ]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Schedule]:
        rows = super().get_queryset(request)
        seen = allowed(request)
        return rows if seen is None else rows.filter(queue__in=list(seen))

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        return self.fieldsets if obj else self.fieldsets[:-1]

    @admin.display(description=gettext_lazy("next ticks"))
    def next_ticks(self, schedule: Schedule) -> str:
        if schedule.paused or schedule.ended_at:
            return EMPTY
        at = schedule.next_run_at
        ticks = [make_aware(at) if is_naive(at) else at]
        while len(ticks) < TICKS:
            ticks.append(schedule.following(ticks[-1], ticks[-1]))
        return format_html_join(", ", "{}", ((when(tick),) for tick in ticks))

    @admin.display(description=gettext_lazy("last ticks"))
    def last_ticks(self, schedule: Schedule) -> str:
        """Return the times of the last ticks, with links to their messages."""
        pk, params = schedule.queue_id, {"name": schedule.name, "look": LOOK, "most": TICKS}
        rows = ask("schedule", {"queue": pk, **params})
        if not rows:
            return EMPTY
        links = []
        for message_id, text in rows:
            at = ""
            with suppress(ValueError):  # Any sender can set this header to any text.
                at = when(parse_datetime(text or ""))
            links.append((at, self.message_link(message_id, pk)))
        return format_html_join(", ", "{}: {}", links)

    @admin.display(description=gettext_lazy("declared in code"), boolean=True)
    def is_declared(self, schedule: Schedule) -> bool:
        return schedule.declared is not None
