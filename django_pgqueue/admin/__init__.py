"""Pages for queues, messages and the archive in Django's admin.

The cost of a page does not grow with the number of messages: each count, sort and search uses an
index or has a limit.
"""

from __future__ import annotations

from django_pgqueue import conf

# Forms ask for the queues' database when they are imported. If that setting is wrong, the import
# would fail, and no system check could say why.
if not conf.problem("DATABASE"):
    from django_pgqueue.admin.audit import AuditEntryAdmin
    from django_pgqueue.admin.batches import BatchAdmin
    from django_pgqueue.admin.bulk_action_page import BulkActionAdmin
    from django_pgqueue.admin.exports import ExportRunAdmin, LakeAdmin
    from django_pgqueue.admin.labels import translate_fields
    from django_pgqueue.admin.messages import MessageAdmin
    from django_pgqueue.admin.processes import ProcessAdmin
    from django_pgqueue.admin.queues import QueueAdmin
    from django_pgqueue.admin.rollups import RollupAdmin, RollupRunAdmin
    from django_pgqueue.admin.schedules import ScheduleAdmin
    from django_pgqueue.admin.topics import BindingAdmin

    translate_fields()

__all__ = [
    "AuditEntryAdmin",
    "BatchAdmin",
    "BindingAdmin",
    "BulkActionAdmin",
    "ExportRunAdmin",
    "LakeAdmin",
    "MessageAdmin",
    "ProcessAdmin",
    "QueueAdmin",
    "RollupAdmin",
    "RollupRunAdmin",
    "ScheduleAdmin",
]
