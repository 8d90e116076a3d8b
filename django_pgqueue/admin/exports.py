"""The admin of lakes and of export runs."""

from __future__ import annotations

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.template.defaultfilters import filesizeformat
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue.admin import generic
from django_pgqueue.admin.access import allowed
from django_pgqueue.admin.base import PageAdmin, RecordAdmin, column
from django_pgqueue.models import ExportRun, Lake
from django_pgqueue.templatetags.pgqueue_admin import EMPTY, lapse, moment, when

__all__ = ["ExportRunAdmin", "LakeAdmin"]


def _lakes_for(request: HttpRequest) -> list[int]:
    """Ids of the lakes whose queues the user may all see."""
    seen = allowed(request)
    names = None if seen is None else {name.lower() for name in seen.values()}
    return [
        lake.pk
        for lake in Lake.objects.all()
        if names is None
        or (lake.queues and names.issuperset(str(name).lower() for name in lake.queues))
    ]


class LakeForm(generic.ModelForm):
    """The settings of a lake."""

    class Meta:
        model = Lake
        fields = ["queues", "holds_retention"]

    def clean_queues(self) -> list[str]:
        queues = self.cleaned_data["queues"]
        if queues in (None, ""):
            return []
        if not isinstance(queues, list) or not all(isinstance(name, str) for name in queues):
            raise forms.ValidationError(
                _("Write a list of names, like %s.") % '["orders", "mails"]'
            )
        return queues


@admin.register(Lake)
class LakeAdmin(PageAdmin):
    """The lakes that the archive is exported to. An export creates them; users edit settings."""

    form = LakeForm

    def get_queryset(self, request: HttpRequest) -> QuerySet[Lake]:
        return super().get_queryset(request).filter(pk__in=_lakes_for(request))

    list_display = ["path", "takes", "holds_retention", "exported_below", "made_at"]
    fields = ["path", "queues", "holds_retention", "exported_below", "made_at"]
    readonly_fields = ["path", "exported_below", "made_at"]

    takes = column(
        gettext_lazy("queues"), lambda lake: ", ".join(map(str, lake.queues)) or _("all")
    )
    made_at = column(gettext_lazy("created at"), lambda lake: moment(lake.created_at))

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False


@admin.register(ExportRun)
class ExportRunAdmin(RecordAdmin):
    """The runs of the export: messages, duration, and whether they were verified."""

    list_display = [
        *("id", "lake", "kind", "state", "rows", "files", "size", "began", "took", "verified"),
    ]
    list_filter = ["kind", "state"]
    list_select_related = ["lake"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[ExportRun]:
        return super().get_queryset(request).filter(lake__in=_lakes_for(request))

    size = column(gettext_lazy("size"), lambda run: str(filesizeformat(run.bytes)))
    began = column(gettext_lazy("started at"), lambda run: when(run.started_at))
    verified = column(gettext_lazy("verified at"), lambda run: when(run.verified_at) or EMPTY)
    took = column(
        gettext_lazy("took"),
        lambda run: (
            _("not finished")
            if run.finished_at is None
            else lapse((run.finished_at - run.started_at).total_seconds())
        ),
    )
