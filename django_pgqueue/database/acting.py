"""Transactions in which the triggers of the audit log know who acts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections, transaction

from django_pgqueue.audit import actor
from django_pgqueue.database.locks import set_locally


def tell_actor(cursor: Any) -> None:
    """Tell the triggers who acts, until the end of the transaction."""
    set_locally(cursor, **{"pgqueue.actor": actor().as_json()})


@contextmanager
def operating(alias: str) -> Iterator[None]:
    """Run the block in a transaction. Triggers record its changes with the current actor."""
    connection = connections[alias]
    nested = connection.in_atomic_block
    with transaction.atomic(using=alias):
        if connection.vendor != "postgresql":
            yield
            return
        with connection.cursor() as cursor:
            tell_actor(cursor)
            yield
            if nested:  # what follows in the outer transaction may have another actor
                set_locally(cursor, **{"pgqueue.actor": ""})
