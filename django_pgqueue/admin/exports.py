"""The admin of lakes and of export runs, and the problems of exports that the overview shows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import BooleanField, QuerySet
from django.db.models.expressions import RawSQL
from django.http import HttpRequest
from django.template.defaultfilters import filesizeformat
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue.admin import generic
from django_pgqueue.admin.access import allowed
from django_pgqueue.admin.base import PageAdmin, RecordAdmin, column
from django_pgqueue.engine.wording import age
from django_pgqueue.errors import error_line
from django_pgqueue.maintenance import lakes
from django_pgqueue.maintenance.lakes import LakeHealth
from django_pgqueue.models import ExportRun, Lake
from django_pgqueue.templatetags.pgqueue_admin import EMPTY, counted, cut, lapse, number, when

#: Maximum number of messages counted for a lake.
MOST_COUNTED = 10_000
_ERROR = 200

#: Whether a database session is exporting to the run's lake. A dead process has no session.
IS_RUNNING: Any = RawSQL(
    lakes.is_running("(SELECT path FROM pgqueue_lake WHERE id = pgqueue_export_run.lake_id)"),
    (),
    output_field=BooleanField(),
)


def may_see(queues: Iterable[str], seen: Collection[str] | None) -> bool:
    """Return whether a user may see a lake: only if all of its ``queues`` are in ``seen``.

    A lake whose list of queues is empty takes every queue. ``seen`` is None if the user may see
    all queues.
    """
    taken = {name.lower() for name in queues}
    return seen is None or (bool(taken) and taken <= {name.lower() for name in seen})


def problems(using: str, seen: Collection[str] | None) -> Iterator[tuple[str, bool, str]]:
    """Yield (path, fails, details) of each lake whose exports fail or are late.

    ``seen`` are the names of the queues that the user may see; None: all.
    """
    for lake in lakes.health(using, MOST_COUNTED):
        if not may_see(lake.queues, seen) or not (lake.failures or lake.is_late()):
            continue
        told = cut(lake.error, _ERROR) if lake.failures else _("%s behind") % age(lake.seconds)
        if lake.held:
            told = _("%(problem)s; retention keeps %(messages)s until they are exported") % {
                "problem": told,
                "messages": counted(lake.held),
            }
        yield lake.path, bool(lake.failures), told


def _lakes_for(request: HttpRequest) -> list[int]:
    """Return the ids of the lakes that the user may see."""
    seen = allowed(request)
    names = None if seen is None else seen.values()
    return [lake.pk for lake in Lake.objects.all() if may_see(map(str, lake.queues), names)]


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
                _("Enter a list of queue names, such as %s.") % '["orders", "mails"]'
            )
        return queues


def _add_health(rows: Sequence[Any]) -> None:
    """Set each lake's ``health``: the state of the lake's exports, or None if unknown."""
    found = {each.path: each for each in lakes.health(rows[0]._state.db, MOST_COUNTED)}
    for lake in rows:
        lake.health = found.get(lake.path)


def _health_column(name: Any, value: Callable[[LakeHealth], str]) -> Any:
    """Make a column that shows ``value(lake.health)``, or "-" if the health is unknown."""
    return column(name, lambda lake: EMPTY if lake.health is None else value(lake.health))


def _state_of_lake(lake: LakeHealth) -> str:
    """Return the state of a lake's exports: running, failed, done or "-"."""
    if lake.running:
        return _("running")
    if lake.failures:
        return _("failed: %s") % cut(lake.error, _ERROR)
    return _("done") if lake.exported_at else EMPTY


def _behind(lake: LakeHealth) -> str:
    """Return the number of messages that a lake lacks, and the time since its last export."""
    if not lake.behind:
        return "0"
    return f"{number(lake.behind, lake.behind < MOST_COUNTED)}, {age(lake.seconds)}"


@admin.register(Lake)
class LakeAdmin(PageAdmin):
    """Lakes, to which the archive is exported. Exports create them; users edit their settings."""

    part, filled_by = "exports", "pgqueue_export"
    form = LakeForm

    def get_queryset(self, request: HttpRequest) -> QuerySet[Lake]:
        return super().get_queryset(request).filter(pk__in=_lakes_for(request))

    list_display = ["path", "takes", "holds_retention", "exported", "behind", "held", "exports"]
    fields = ["path", "queues", "holds_retention", "exported", "behind", "held", "exports"]
    readonly_fields = ["path", "exported", "behind", "held", "exports"]

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        changes = super().get_changelist_instance(request)
        if rows := list(changes.result_list):
            _add_health(rows)
        changes.result_list = rows
        return changes

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        lake = super().get_object(request, object_id, from_field)
        if lake is not None:
            _add_health([lake])
        return lake

    takes = column(
        gettext_lazy("queues"), lambda lake: ", ".join(map(str, lake.queues)) or _("all")
    )
    exported = column(gettext_lazy("exported up to"), lambda lake: when(lake.exported_at) or EMPTY)
    behind = _health_column(gettext_lazy("not exported"), _behind)
    held = _health_column(
        gettext_lazy("held back"), lambda health: number(health.held, health.held < MOST_COUNTED)
    )
    exports = _health_column(gettext_lazy("exports"), _state_of_lake)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False


def _state_of_run(run: Any) -> str:
    """Return a run's state, with the error if it failed. Needs the annotation ``running``."""
    if run.state == ExportRun.State.DONE:
        return _("done")
    if run.resumed_by_id is not None:
        return str(_("failed, resumed by run %s") % run.resumed_by_id)
    if run.running and run.state != ExportRun.State.FAILED:
        return _("running")
    error = cut(error_line(run.error), _ERROR)
    return _("failed: %s") % (error or _("the process ended unexpectedly"))


@admin.register(ExportRun)
class ExportRunAdmin(RecordAdmin):
    """The runs of the export job, with their messages, duration and verification."""

    part, filled_by = "exports", "pgqueue_export"
    list_display = [
        *("id", "lake", "kind", "standing", "messages", "size", "began", "took", "verified"),
    ]
    list_filter = ["kind", "state"]
    list_select_related = ["lake"]

    def get_queryset(self, request: HttpRequest) -> Any:
        runs = super().get_queryset(request).filter(lake__in=_lakes_for(request))
        return runs.annotate(running=IS_RUNNING)

    standing = column(gettext_lazy("state"), _state_of_run)
    messages = column(gettext_lazy("messages"), lambda run: number(run.rows))
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
