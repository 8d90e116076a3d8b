"""The models, and ``queue()``, which returns the operations on a queue."""

from __future__ import annotations

from django_pgqueue.models.archive import ArchivedMessage
from django_pgqueue.models.attempt import Attempt
from django_pgqueue.models.binding import Binding
from django_pgqueue.models.bound import BoundQueue, queue
from django_pgqueue.models.bulk import BulkAction, BulkActionPart
from django_pgqueue.models.export import ExportRun, Lake, PurgeMark
from django_pgqueue.models.group import BoundGroup, GroupSetting
from django_pgqueue.models.history import History
from django_pgqueue.models.live import LiveMessage
from django_pgqueue.models.maintenance_lease import MaintenanceLease
from django_pgqueue.models.message import Message
from django_pgqueue.models.process import Process
from django_pgqueue.models.queue import Queue
from django_pgqueue.models.rollup import Rollup, RollupRun
from django_pgqueue.models.schedule import Missed, Schedule

__all__ = [
    "ArchivedMessage",
    "Attempt",
    "Binding",
    "BoundGroup",
    "BoundQueue",
    "BulkAction",
    "BulkActionPart",
    "ExportRun",
    "GroupSetting",
    "History",
    "Lake",
    "LiveMessage",
    "MaintenanceLease",
    "Message",
    "Missed",
    "Process",
    "PurgeMark",
    "Queue",
    "Rollup",
    "RollupRun",
    "Schedule",
    "queue",
]
