"""A consumer process that lives, and what becomes of the leases of one that died."""

from __future__ import annotations

import datetime as dt
import os
import socket
from typing import Any, ClassVar

from django.db import models, transaction
from django.utils.translation import gettext_lazy

from django_pgqueue.engine.leases.batches import rescue
from django_pgqueue.models.clock import NOW
from django_pgqueue.models.queue import Queue

__all__ = ["Process"]


class ProcessManager(models.Manager["Process"]):
    """Registers processes, and gives back the messages of dead ones."""

    def register(self, queues: list[str], *, version: str, using: str) -> Process:
        """A row for this process; its id marks the leases that the process takes."""
        return self.using(using).create(
            host=socket.gethostname(), pid=os.getpid(), version=version, queues=queues
        )

    def beat(self, process: Process, working_on: dict[str, Any], stopping: bool) -> bool:
        """Note that the process lives; False when its row was reaped."""
        return bool(
            self.using(process._state.db)
            .filter(pk=process.pk)
            .update(heartbeat_at=NOW, working_on=working_on, stopping=stopping)
        )

    def live(self, dead_after: float, *, using: str) -> list[Process]:
        """The processes with a heartbeat within ``dead_after`` seconds, but those that stop."""
        last = models.ExpressionWrapper(
            NOW - dt.timedelta(seconds=dead_after), output_field=models.DateTimeField()
        )
        return list(self.using(using).filter(heartbeat_at__gte=last, stopping=False))

    def reap(self, older_than: dt.timedelta, *, using: str) -> dict[int, int]:
        """Remove processes without a heartbeat for that long, and make their leases readable.

        Many processes may do it at once: each dead one is reaped by one of them. Returns how many
        leases each had, by its id.
        """
        rescued: dict[int, int] = {}
        with transaction.atomic(using=using):
            last = models.ExpressionWrapper(NOW - older_than, output_field=models.DateTimeField())
            dead = list(
                self.using(using)
                .select_for_update(skip_locked=True)
                .filter(heartbeat_at__lt=last)
                .order_by("pk")
            )
            for process in dead:
                rescued[process.pk] = self._give_back(process, using)
                process.delete()
        return rescued

    def _give_back(self, process: Process, using: str) -> int:
        count = 0
        for queue in Queue.objects.using(using).filter(name__in=process.queues):
            count += rescue(queue.opened, process.pk)
        return count


class Process(models.Model):
    """One running consumer process; its row goes when it stops, or soon after it died."""

    id: models.AutoField[int, int] = models.AutoField(primary_key=True)
    host: models.TextField[str, str] = models.TextField()
    pid: models.IntegerField[int, int] = models.IntegerField()
    version: models.TextField[str, str] = models.TextField()
    queues: models.JSONField[Any, Any] = models.JSONField(default=list)
    working_on: models.JSONField[Any, Any] = models.JSONField(default=dict)
    stopping: models.BooleanField[bool, bool] = models.BooleanField(default=False)
    started_at: models.DateTimeField[dt.datetime, dt.datetime] = models.DateTimeField(
        db_default=NOW
    )
    heartbeat_at: models.DateTimeField[dt.datetime, dt.datetime] = models.DateTimeField(
        db_default=NOW
    )

    objects: ClassVar[ProcessManager] = ProcessManager()

    class Meta:
        verbose_name: ClassVar[Any] = gettext_lazy("consumer process")
        verbose_name_plural: ClassVar[Any] = gettext_lazy("consumer processes")
        default_permissions: ClassVar[tuple[str, ...]] = ("view",)
        permissions: ClassVar[tuple[tuple[str, str], ...]] = (
            ("view_health", "Can view the health of the database"),
        )
        db_table = "pgqueue_process"
        required_db_vendor = "postgresql"

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}"
