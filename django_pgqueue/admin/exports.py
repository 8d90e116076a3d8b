"""The admin of lakes and of export runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.template.defaultfilters import filesizeformat
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue.admin import export_health, generic
from django_pgqueue.admin.access import allowed
from django_pgqueue.admin.base import PageAdmin, RecordAdmin
from django_pgqueue.admin.export_health import MOST_COUNTED
from django_pgqueue.admin.wording import EMPTY, moment
from django_pgqueue.maintenance import lakes
from django_pgqueue.models import ExportRun, Lake
from django_pgqueue.wording import amount

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

    list_display = ["path", "takes", "holds_retention", "exported", "behind", "held", "exports"]
    fields = ["path", "queues", "holds_retention", "exported", "behind", "held", "exports"]
    readonly_fields = ["path", "exported", "behind", "held", "exports"]

    def prepare(self, rows: Sequence[Any]) -> None:
        """Attach the health of each lake's exports."""
        if rows:
            using = rows[0]._state.db
            found = {each.path: each for each in lakes.health(using, MOST_COUNTED)}
            for lake in rows:
                lake.health = found.get(lake.path)

    @admin.display(description=gettext_lazy("queues"))
    def takes(self, lake: Lake) -> str:
        return ", ".join(map(str, lake.queues)) or _("all")

    @admin.display(description=gettext_lazy("exported up to"))
    def exported(self, lake: Lake) -> str:
        return moment(lake.exported_at)

    @admin.display(description=gettext_lazy("not exported"))
    def behind(self, lake: Any) -> str:
        return EMPTY if lake.health is None else export_health.behind(lake.health)

    @admin.display(description=gettext_lazy("held back"))
    def held(self, lake: Any) -> str:
        if lake.health is None:
            return EMPTY
        return amount(lake.health.held, exact=lake.health.held < MOST_COUNTED)

    @admin.display(description=gettext_lazy("exports"))
    def exports(self, lake: Any) -> str:
        return EMPTY if lake.health is None else export_health.state_of_lake(lake.health)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False


@admin.register(ExportRun)
class ExportRunAdmin(RecordAdmin):
    """The runs of the export: messages, duration, and whether they were verified."""

    list_display = [
        "id",
        "lake",
        "kind",
        "standing",
        "rows",
        "files",
        "size",
        "began",
        "took",
        "verified",
    ]
    list_filter = ["kind", "state"]
    list_select_related = ["lake"]

    def get_queryset(self, request: HttpRequest) -> Any:
        runs = super().get_queryset(request).filter(lake__in=_lakes_for(request))
        return runs.annotate(running=export_health.IS_RUNNING)

    @admin.display(description=gettext_lazy("state"))
    def standing(self, run: Any) -> Any:
        return export_health.state_of_run(run)

    @admin.display(description=gettext_lazy("size"))
    def size(self, run: ExportRun) -> str:
        return str(filesizeformat(run.bytes))

    @admin.display(description=gettext_lazy("started at"))
    def began(self, run: ExportRun) -> str:
        return moment(run.started_at)

    @admin.display(description=gettext_lazy("verified at"))
    def verified(self, run: ExportRun) -> str:
        return moment(run.verified_at)

    @admin.display(description=gettext_lazy("took"))
    def took(self, run: Any) -> str:
        if run.finished_at is None:
            return _("not finished")
        return f"{(run.finished_at - run.started_at).total_seconds():.1f} s"
