"""Schedules: what is sent when, changed and paused without a restart."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_pgqueue.admin.access import allowed
from django_pgqueue.admin.base import PageAdmin
from django_pgqueue.models import Schedule

__all__ = ["ScheduleAdmin"]


@admin.register(Schedule)
class ScheduleAdmin(PageAdmin):
    """Those that the code declares stand here as well; what is changed here wins until then."""

    list_display = [
        "name",
        "queue",
        "when",
        "next_run",
        "last_run_at",
        "paused",
        "ended_at",
        "error",
    ]
    list_select_related = ["queue"]
    list_filter = ["paused", ("ended_at", admin.EmptyFieldListFilter)]
    search_fields = ["name"]
    actions = ["pause", "go_on"]
    readonly_fields = ["next_run", "last_run_at", "error", "is_declared", "ended_at"]
    fieldsets = [
        (None, {"fields": ["name", "queue", "paused"]}),
        (gettext_lazy("When"), {"fields": ["cron", "interval", "time_zone", "missed"]}),
        (gettext_lazy("Message"), {"fields": ["body", "priority"]}),
        (
            gettext_lazy("Runs"),
            {"fields": ["next_run", "last_run_at", "error", "is_declared", "ended_at"]},
        ),
    ]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Schedule]:
        rows = super().get_queryset(request)
        seen = allowed(request)
        return rows if seen is None else rows.filter(queue__in=list(seen))

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name == "queue":
            kwargs["queryset"] = self.queues(request)
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    @admin.display(description=gettext_lazy("when"))
    def when(self, schedule: Schedule) -> str:
        if schedule.interval is not None:
            return _("every %s") % schedule.interval
        return f"{schedule.cron} {schedule.time_zone}"

    @admin.display(description=gettext_lazy("next run"), ordering="next_run_at")
    def next_run(self, schedule: Schedule) -> Any:
        return None if schedule.paused or schedule.ended_at else schedule.next_run_at

    @admin.display(description=gettext_lazy("declared in code"), boolean=True)
    def is_declared(self, schedule: Schedule) -> bool:
        return schedule.declared is not None

    @admin.action(description=gettext_lazy("Pause"), permissions=["change"])
    def pause(self, request: HttpRequest, schedules: QuerySet[Schedule]) -> None:
        self._set_paused(request, schedules, True)

    @admin.action(description=gettext_lazy("Go on"), permissions=["change"])
    def go_on(self, request: HttpRequest, schedules: QuerySet[Schedule]) -> None:
        self._set_paused(request, schedules, False)

    def _set_paused(
        self, request: HttpRequest, schedules: QuerySet[Schedule], paused: bool
    ) -> None:
        changed = 0
        others = Q(paused=not paused)
        for schedule in schedules.filter(others if paused else others | ~Q(ended_at=None)):
            schedule.paused = paused
            if schedule.ended_at is not None and not paused:
                # The admin's from now on: a consumer would end a declared one again.
                schedule.ended_at = schedule.declared = None
            schedule.save()
            changed += 1
        if paused:
            told = ngettext("Paused %s schedule.", "Paused %s schedules.", changed)
        else:
            told = ngettext("Resumed %s schedule.", "Resumed %s schedules.", changed)
        self.message_user(request, told % changed)
