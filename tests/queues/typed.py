"""Read by mypy and pyright, which must find a mistake in each line marked so, and no other."""

from __future__ import annotations

from django_pgqueue import queue
from django_pgqueue.models import Message
from django_pgqueue.operations import AlterQueue, CreateQueue

queue("orders").create(limit=3, retention=3600, dead_letter_queue=None)
queue("orders").create(limits=3)  # WRONG
queue("orders").create(limit="3")  # WRONG
Message.objects.create_queue("orders", rates="3/s")  # WRONG
CreateQueue("orders", rate="3/s", unlogged=True)
CreateQueue("orders", rate=3)  # WRONG
AlterQueue("orders", rate="3/s", before={"rate": None})
AlterQueue("orders", unlogged=True)  # WRONG
