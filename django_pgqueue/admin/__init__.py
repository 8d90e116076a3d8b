"""Queues, messages and the archive in Django's admin: to look at, and to settle by hand.

The cost of a page does not grow with the number of messages: nothing here counts, sorts or
searches without an index or an end.
"""

from __future__ import annotations

from django_pgqueue.admin.archive import ArchivedMessageAdmin
from django_pgqueue.admin.exports import ExportRunAdmin, LakeAdmin
from django_pgqueue.admin.labels import translate_fields
from django_pgqueue.admin.messages import MessageAdmin
from django_pgqueue.admin.operations import OperationAdmin
from django_pgqueue.admin.processes import ProcessAdmin
from django_pgqueue.admin.queues import QueueAdmin
from django_pgqueue.admin.rollups import RollupAdmin, RollupRunAdmin
from django_pgqueue.admin.schedules import ScheduleAdmin

__all__ = [
    "ArchivedMessageAdmin",
    "ExportRunAdmin",
    "LakeAdmin",
    "MessageAdmin",
    "OperationAdmin",
    "ProcessAdmin",
    "QueueAdmin",
    "RollupAdmin",
    "RollupRunAdmin",
    "ScheduleAdmin",
]

translate_fields()
