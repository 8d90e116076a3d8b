"""The models, and ``queue()``, which returns the operations on a queue."""

from __future__ import annotations

from django_pgqueue.flows.tables import Note, PendingWait, SentSignal, Step
from django_pgqueue.queues.archive import ArchivedMessage
from django_pgqueue.queues.batch import Batch, BatchPart
from django_pgqueue.queues.bound import BoundQueue, queue
from django_pgqueue.queues.bulk import BulkAction, BulkActionPart
from django_pgqueue.queues.group import BoundGroup
from django_pgqueue.queues.message import Message
from django_pgqueue.queues.schedule import Missed, Schedule
from django_pgqueue.queues.unsent import UnsentMessage
from django_pgqueue.tables.acknowledgement import Acknowledgement
from django_pgqueue.tables.attempt import Attempt
from django_pgqueue.tables.audit import AuditEntry
from django_pgqueue.tables.binding import Binding
from django_pgqueue.tables.export import ExportRun, Lake, PurgeMark
from django_pgqueue.tables.group import GroupSetting
from django_pgqueue.tables.history import History
from django_pgqueue.tables.live import LiveMessage
from django_pgqueue.tables.maintenance_lease import MaintenanceLease
from django_pgqueue.tables.mark import Mark
from django_pgqueue.tables.process import Process
from django_pgqueue.tables.queue import Queue
from django_pgqueue.tables.rollup import Rollup, RollupRun

__all__ = [
    "Acknowledgement",
    "ArchivedMessage",
    "Attempt",
    "AuditEntry",
    "Batch",
    "BatchPart",
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
    "Mark",
    "Message",
    "Missed",
    "Note",
    "PendingWait",
    "Process",
    "PurgeMark",
    "Queue",
    "Rollup",
    "RollupRun",
    "Schedule",
    "SentSignal",
    "Step",
    "UnsentMessage",
    "queue",
]
