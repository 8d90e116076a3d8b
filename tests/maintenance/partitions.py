"""A queue's partitions by time."""

from __future__ import annotations

from django.db import connections

from django_pgqueue.maintenance.partitions import Partition, find_partitions
from django_pgqueue.models import Queue

__all__ = ["partitions"]


def partitions(queue: Queue, using: str = "default") -> list[Partition]:
    with connections[using].cursor() as cursor:
        return find_partitions(cursor, queue.pk)
