"""The context of a handler's run."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django_pgqueue.models import Message
from django_pgqueue.worker.running import Running
from django_pgqueue.worker.subscription import Subscription

__all__ = ["Context"]


@dataclass(eq=False)
class Context:
    """Information about a run, for its handler and middleware.

    A handler gets it if it has a parameter named ``context``; every middleware gets it.

    ::

        @consumer("orders", timeout=60)
        def charge(message, context):
            context.logger.info("attempt %s, %.0f s left", context.attempt, context.remaining)
    """

    _subscription: Subscription
    _running: Running
    _messages: list[Message]

    @property
    def queue(self) -> str:
        """The name of the queue."""
        return self._subscription.name

    @property
    def messages(self) -> list[Message]:
        """The message of this run, or the whole batch."""
        return self._messages

    @property
    def attempt(self) -> int:
        """The number of this attempt, counted from 1; in a batch, that of the first message."""
        return self._messages[0].attempts + 1

    @property
    def deliveries(self) -> int:
        """The number of deliveries, including this one; in a batch, that of the first message."""
        return self._messages[0].read_ct

    @property
    def process_id(self) -> int | None:
        """The id of this consumer process: its row in :class:`~django_pgqueue.models.Process`."""
        return self._subscription.process_id

    @property
    def cancelled(self) -> bool:
        """Whether the message, or the whole batch, was cancelled during the run.

        The consumer notices when it next extends the lease, within half of the visibility timeout,
        and cancels an async handler. A plain handler should return early: its outcome is ignored.
        """
        return self._running.cancelled

    @property
    def deadline(self) -> float | None:
        """The end of the handler's timeout by ``time.monotonic()``; None without one."""
        timeout = self._subscription.handler.timeout_of(self._messages[0])
        return None if timeout is None else self._running.started + timeout

    @property
    def remaining(self) -> float:
        """Seconds until the deadline; infinity without one."""
        return float("inf") if self.deadline is None else self.deadline - time.monotonic()

    @cached_property
    def logger(self) -> logging.LoggerAdapter[Any]:
        """A logger whose records carry the queue and the message's id."""
        return logging.LoggerAdapter(
            logging.getLogger(self._subscription.handler.function.__module__),
            {"queue": self.queue, "message_id": self._messages[0].id},
        )
