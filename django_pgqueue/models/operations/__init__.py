"""What can be done with queues and messages: the methods of ``Message.objects``."""

from __future__ import annotations

from django_pgqueue.models.operations.base import MessageT
from django_pgqueue.models.operations.dead_letters import DeadLetters
from django_pgqueue.models.operations.exchanging import Exchanging
from django_pgqueue.models.operations.groups import Groups
from django_pgqueue.models.operations.lifecycle import Lifecycle
from django_pgqueue.models.operations.maintaining import Maintaining
from django_pgqueue.models.operations.measuring import Measuring
from django_pgqueue.models.operations.topics import Topics

__all__ = ["MessageManager"]


class MessageManager(
    Lifecycle[MessageT],
    Topics[MessageT],
    Groups[MessageT],
    Exchanging[MessageT],
    DeadLetters[MessageT],
    Measuring[MessageT],
    Maintaining[MessageT],
):
    """Every operation, by topic. Each takes ``using=`` to name a database, and has an async
    twin of the same name with an ``a`` in front.

    Example::

        Message.objects.create_queue("orders")
        Message.objects.send("orders", {"order": 7}, delay=60)
        for message in Message.objects.read("orders", qty=10):
            ...
        await Message.objects.asend("orders", {"order": 8})
    """
