"""A typing.Protocol of queues: maintenance needs it, since it imports no model."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, Protocol


class StoredQueue(Protocol):
    """The attributes of the model ``Queue`` that maintenance uses."""

    partition_interval: Any

    @property
    def pk(self) -> Any: ...
    @property
    def name(self) -> Any: ...
    @property
    def alias(self) -> str: ...
    @property
    def unlogged(self) -> Any: ...
    @property
    def dead_letter_queue_id(self) -> Any: ...
    @property
    def source_id(self) -> Any: ...
    @property
    def subscriptions(self) -> Any: ...
    @property
    def retention(self) -> dt.timedelta | None: ...
    @property
    def tables(self) -> Mapping[str, Any]: ...

    def reread(self) -> StoredQueue:
        """Return the queue with its current settings from the database.

        Raises QueueNotFound if it was dropped, and RuntimeError inside a transaction.
        """
