"""The nouns: queues, messages, where they stand, and the archive."""

from __future__ import annotations

from django_pgqueue.models.archive import ArchivedMessage
from django_pgqueue.models.bound import BoundQueue, queue
from django_pgqueue.models.live import Deferred, LiveMessage, Ready
from django_pgqueue.models.message import Message
from django_pgqueue.models.process import Process
from django_pgqueue.models.queue import Queue

__all__ = [
    "ArchivedMessage",
    "BoundQueue",
    "Deferred",
    "LiveMessage",
    "Message",
    "Process",
    "Queue",
    "Ready",
    "queue",
]
