"""Consumer processes: registration, heartbeats, and release of dead processes' leases."""

from __future__ import annotations

import datetime as dt
import json
import os
import socket
from contextlib import nullcontext
from typing import Any, ClassVar

from django.db import connections, models, transaction
from django.utils.translation import gettext_lazy

from django_pgqueue.database.home import HomeManager
from django_pgqueue.database.locks import set_locally
from django_pgqueue.engine.leases.batches import rescue
from django_pgqueue.tables import columns
from django_pgqueue.tables.mark import LONGEST, Mark
from django_pgqueue.tables.queue import Queue

# The commit of a heartbeat does not wait for the disk: a server crash may lose the heartbeat.
_BEAT = """
    UPDATE pgqueue_process
    SET heartbeat_at = statement_timestamp(), working_on = %s, runs = %s, stopping = %s
    WHERE id = %s AND gone_at IS NULL AND set_config('synchronous_commit', 'off', true) = 'off'
    RETURNING quiet, stacks_wanted
"""

#: Seconds without a heartbeat after which a process counts as dead.
DEAD_AFTER = 12.0
#: How long the row of a dead process is kept.
GONE_KEPT = dt.timedelta(days=1)


def ago(time: dt.timedelta) -> models.ExpressionWrapper[Any]:
    """Return an SQL expression: the database's current time minus ``time``."""
    return models.ExpressionWrapper(columns.NOW - time, output_field=models.DateTimeField())


class ProcessManager(HomeManager["Process"]):
    """Registers processes, and releases the leases of dead ones.

    Its querysets leave out processes that were found dead.
    """

    def get_queryset(self) -> models.QuerySet[Process]:
        return super().get_queryset().filter(gone_at=None)

    def register(self, queues: list[str], *, version: str, using: str) -> Process:
        """Insert a row for this process. The process stores the row's id in its leases.

        The environment variable PGQUEUE_RELEASE names the project's release. The first process of
        a release marks it.
        """
        release = os.environ.get("PGQUEUE_RELEASE", "").replace("\0", "").strip()[:LONGEST]
        with transaction.atomic(using=using) if release else nullcontext():
            if release:
                Mark.objects.released(release, DEAD_AFTER, using=using)
            return self.using(using).create(
                host=socket.gethostname(),
                pid=os.getpid(),
                version=version,
                release=release,
                queues=queues,
            )

    def beat(
        self, process: Process, working_on: dict[str, Any], runs: list[Any], stopping: bool
    ) -> tuple[bool, bool] | None:
        """Record a heartbeat: the messages in progress, and what handles them.

        Returns what was asked of the process: whether to be quiet, and whether to write its stacks.
        None if the process was marked as gone.
        """
        with connections[process._state.db or "default"].cursor() as cursor:
            cursor.execute(_BEAT, [json.dumps(working_on), json.dumps(runs), stopping, process.pk])
            row = cursor.fetchone()
        return None if row is None else (bool(row[0]), bool(row[1]))

    def write_stacks(self, process: Process, stacks: list[Any]) -> None:
        """Answer the request for a process's stacks."""
        rows = self.using(process._state.db).filter(pk=process.pk)
        rows.update(stacks=stacks, stacks_at=columns.NOW, stacks_wanted=False)

    def live(self, dead_after: float, *, using: str) -> list[Process]:
        """Return the processes with a heartbeat in the last ``dead_after`` seconds.

        Leaves out stopping processes.
        """
        last = ago(dt.timedelta(seconds=dead_after))
        return list(self.using(using).filter(heartbeat_at__gte=last, stopping=False))

    def declared(self, *, using: str) -> set[str]:
        """Return the names of the schedules that the code of running processes declares."""
        lists = self.using(using).values_list("schedules", flat=True)
        return {name for names in lists for name in names}

    def reap(self, older_than: dt.timedelta, *, using: str) -> dict[int, int]:
        """Mark processes without a heartbeat for this long as gone, and release their leases.

        Their rows are kept for a day. Several processes may call it at the same time: only one of
        them marks a dead process. Returns the numbers of released leases by process id.
        """
        rescued: dict[int, int] = {}
        alone = not connections[using].in_atomic_block
        with transaction.atomic(using=using):
            if alone:  # if a server crash loses the commit, the next call repeats the work
                with connections[using].cursor() as cursor:
                    set_locally(cursor, synchronous_commit="off")
            dead = list(
                self.using(using)
                .select_for_update(skip_locked=True)
                .filter(heartbeat_at__lt=ago(older_than))
                .order_by("pk")
            )
            for process in dead:
                queues = Queue.objects.using(using).filter(name__in=process.queues)
                rescued[process.pk] = sum(rescue(queue.opened, process.pk) for queue in queues)
                self.using(using).filter(pk=process.pk).update(
                    gone_at=columns.NOW, working_on={}, runs=[], given_back=rescued[process.pk]
                )
            if dead:
                self.model.every.using(using).filter(gone_at__lt=ago(GONE_KEPT)).delete()
        return rescued


class Process(models.Model):
    """One consumer process. Its row is deleted when it stops, or a day after it was found dead."""

    id: columns.AutoKey = models.AutoField(primary_key=True)
    host: columns.Text = models.TextField()
    pid: columns.Integer = models.IntegerField()
    version: columns.Text = models.TextField()
    release: columns.Text = models.TextField(default="", db_default="")
    queues: columns.JSON = models.JSONField(default=list)
    working_on: columns.JSON = models.JSONField(default=dict)
    runs: columns.JSON = models.JSONField(
        default=list, help_text="The runs of handlers, the longest first."
    )
    stacks_wanted: columns.Boolean = models.BooleanField(
        default=False, help_text="Whether it was asked for the stacks of its runs."
    )
    stacks: columns.JSON = models.JSONField(
        null=True, help_text="The stacks of its runs when it was last asked for them."
    )
    stacks_at: columns.TimeOrNull = models.DateTimeField(null=True)
    schedules: columns.JSON = models.JSONField(
        default=list, help_text="Names of the schedules that its code declares."
    )
    stopping: columns.Boolean = models.BooleanField(default=False)
    quiet: columns.Boolean = models.BooleanField(
        default=False, help_text="Whether it was asked to fetch no more messages."
    )
    started_at: columns.Time = models.DateTimeField(db_default=columns.NOW)
    heartbeat_at: columns.Time = models.DateTimeField(db_default=columns.NOW)
    gone_at: columns.TimeOrNull = models.DateTimeField(
        null=True, help_text="When it was found dead: its heartbeats ended, but it had not stopped."
    )
    given_back: columns.Integer = models.IntegerField(
        default=0, help_text="Number of messages that it held when it died."
    )

    objects: ClassVar[ProcessManager] = ProcessManager()
    #: All processes, including dead ones.
    every: ClassVar[models.Manager[Process]] = HomeManager["Process"]()

    class Meta(columns.Meta):
        verbose_name: ClassVar[Any] = gettext_lazy("consumer process")
        verbose_name_plural: ClassVar[Any] = gettext_lazy("consumer processes")
        default_permissions: ClassVar[tuple[str, ...]] = ("view",)
        permissions: ClassVar[tuple[tuple[str, str], ...]] = (
            ("view_health", "Can view the health of the database"),
            ("quiet_process", "Can keep consumer processes from fetching"),
            ("view_stack", "Can view the stacks of running handlers"),
        )
        db_table = "pgqueue_process"
        constraints: ClassVar[tuple[models.BaseConstraint, ...]] = (
            *columns.listing("pgqueue_process", "string", "queues", "schedules"),
        )

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}"
