"""The admin of schedules. Users change, pause and run them without restarting consumers."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.widgets import AdminTextInputWidget
from django.db import models
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
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
from django_pgqueue.admin.ticks import Sparkline
from django_pgqueue.errors import PgQueueError
from django_pgqueue.models import Schedule
from django_pgqueue.queues.ticks import KEPT, tick_at
from django_pgqueue.templatetags.pgqueue_admin import EMPTY, moment, when
from django_pgqueue.types import was_skipped

#: The number of next ticks that are shown.
TICKS = 5


class SchedulesPage(Page):
    """All schedules by name, with their times and buttons."""

    name = "schedule_changelist"
    template = "schedules"

    def answer(self) -> HttpResponse:
        rows = self.owner.get_queryset(self.request).select_related("queue").order_by("name")
        return self.render_live(
            {
                "title": _("Schedules"),
                "rows": [
                    (each, self.owner.queue_link(each.queue_id, each.queue), Sparkline(each))
                    for each in rows
                ],
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
        if was_skipped(sent) and not schedule.unique_key:
            self.tell(Once.repeated(self._link(schedule, sent)), messages.WARNING)
            return
        _tell_sent(self, schedule, sent)
        if not was_skipped(sent):
            once.remember(schedule.queue_id, sent)

    def _link(self, schedule: Schedule, sent: int) -> str:
        return str(self.owner.message_link(sent, schedule.queue_id))


class MissedPage(Page):
    """Asks whether to send the message of a missed tick, then sends it."""

    name = "schedule_missed"
    route = "<int:pk>/missed/<int:microseconds>/"
    permission = "change_schedule"
    template = "confirm_action"

    def answer(self, pk: int, microseconds: int) -> HttpResponse:
        schedule = get_object_or_404(self.owner.get_queryset(self.request), pk=pk)
        back = self.url("schedule_change", pk)
        tick = tick_at(schedule.latest_ticks, microseconds)
        if tick is None:
            told = _("This tick is not among the latest %s: use Run now.") % KEPT
            self.tell(told, messages.WARNING)
        elif not tick.is_missed:
            link = self.owner.message_link(tick.message_id, schedule.queue_id)
            told = format_html(_("This tick is not missed: see message {id}."), id=link)
            self.tell(told, messages.WARNING)
        elif self.request.POST.get("confirmed") != "yes":
            asked = _("No message was sent for the tick {at} of {schedule}. Send it now?")
            return self.render(
                {
                    "title": _("Send a missed tick"),
                    "questions": [format_html(asked, at=moment(tick.at), schedule=schedule)],
                    "about": _("Its header has the time of the tick."),
                    "back": back,
                }
            )
        else:
            try:
                _tell_sent(self, schedule, schedule.run_missed(tick))
            except PgQueueError as error:  # another user was faster, or it is refused
                self.tell(str(error), messages.ERROR)
        return HttpResponseRedirect(back)


def _tell_sent(page: Page, schedule: Schedule, sent: int) -> None:
    """Tell the user which message was sent, or which one holds the schedule's key."""
    link = page.owner.message_link(sent, schedule.queue_id)
    if was_skipped(sent):
        told = _("Nothing was sent: message {id} of {queue} has this unique key.")
        page.tell(format_html(told, id=link, queue=schedule.queue), messages.WARNING)
    else:
        told = _("Sent message {id} to {queue}.")
        page.tell(format_html(told, id=link, queue=schedule.queue))


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
    pages = [RunPage, MissedPage, PausePage, ResumePage]
    change_form_template = "admin/django_pgqueue/schedule.html"
    readonly_fields = ["next_ticks", "error", "is_declared", "ended_at"]
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

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        if (schedule := context.get("original")) is not None:
            ticks = Sparkline(schedule)
            links = (
                bar.tick.message_id and self.message_link(bar.tick.message_id, schedule.queue_id)
                for bar in ticks.rows
            )
            context |= {"ticks": ticks, "tick_rows": list(zip(ticks.rows, links, strict=True))}
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.display(description=gettext_lazy("next ticks"))
    def next_ticks(self, schedule: Schedule) -> str:
        if schedule.paused or schedule.ended_at:
            return EMPTY
        at = schedule.next_run_at
        ticks = [make_aware(at) if is_naive(at) else at]
        while len(ticks) < TICKS:
            ticks.append(schedule.following(ticks[-1], ticks[-1]))
        return format_html_join(", ", "{}", ((when(tick),) for tick in ticks))

    @admin.display(description=gettext_lazy("declared in code"), boolean=True)
    def is_declared(self, schedule: Schedule) -> bool:
        return schedule.declared is not None
