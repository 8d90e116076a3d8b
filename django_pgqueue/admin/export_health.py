"""The state of an export run, the health of a lake, and the problems that the overview shows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from django.db.models import BooleanField
from django.db.models.expressions import RawSQL
from django.utils.translation import gettext as _

from django_pgqueue.maintenance import lakes
from django_pgqueue.maintenance.lakes import LakeHealth
from django_pgqueue.models import ExportRun
from django_pgqueue.templatetags.pgqueue_admin import EMPTY, counted, cut, number
from django_pgqueue.wording import age

__all__ = [
    *(
        "IS_RUNNING",
        "MOST_COUNTED",
        "behind",
        "may_see",
        "problems",
        "state_of_lake",
        "state_of_run",
    ),
]

#: Maximum number of messages counted for a lake.
MOST_COUNTED = 10_000
_ERROR = 200

#: Whether a database session still works on the run. A run whose process died has no session.
IS_RUNNING: Any = RawSQL(
    lakes.is_running("(SELECT path FROM pgqueue_lake WHERE id = pgqueue_export_run.lake_id)"),
    (),
    output_field=BooleanField(),
)


def may_see(queues: Iterable[str], seen: Collection[str] | None) -> bool:
    """Return whether a user may see a lake: only if all of its ``queues`` are in ``seen``.

    A lake without a list takes every queue. ``seen`` is None if the user may see all queues.
    """
    taken = {name.lower() for name in queues}
    return seen is None or (bool(taken) and taken <= {name.lower() for name in seen})


def state_of_run(run: Any) -> Any:
    """Return a run's state, with the error if it failed. Needs the annotation ``running``."""
    if run.state == ExportRun.State.DONE:
        return _("done")
    if run.resumed_by_id is not None:
        return _("failed, resumed by run %s") % run.resumed_by_id
    if run.running and run.state != ExportRun.State.FAILED:
        return _("running")
    error = run.error.partition("\n")[0]
    return _("failed: %s") % (cut(error, _ERROR) or _("its process is gone"))


def state_of_lake(lake: LakeHealth) -> str:
    """Return the state of a lake's exports: running, failed, done or "-"."""
    if lake.running:
        return _("running")
    if lake.failures:
        return _("failed: %s") % cut(lake.error, _ERROR)
    return _("done") if lake.exported_at else EMPTY


def behind(lake: LakeHealth) -> str:
    """Return as text how many messages a lake lacks, and for how long."""
    if not lake.behind:
        return "0"
    return f"{number(lake.behind, lake.behind < MOST_COUNTED)}, {age(lake.seconds)}"


def problems(using: str, seen: Collection[str] | None) -> Iterator[tuple[str, bool, str]]:
    """Yield each lake whose exports fail or are late: its path, whether they fail, details.

    ``seen`` are the names of the queues that the user may see; None: all.
    """
    for lake in lakes.health(using, MOST_COUNTED):
        if not may_see(lake.queues, seen) or not (lake.failures or lake.is_late()):
            continue
        told = cut(lake.error, _ERROR) if lake.failures else _("%s behind") % age(lake.seconds)
        if lake.held:
            told = _("%(problem)s; retention waits with %(messages)s") % {
                "problem": told,
                "messages": counted(lake.held),
            }
        yield lake.path, bool(lake.failures), told
