"""The signatures of all operations. Written by tools/signatures.py, not by hand."""

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from django.db import models

import django_pgqueue.maintenance as maintenance
from django_pgqueue.acks import Failure, Outcome
from django_pgqueue.engine.settle.settling import Target
from django_pgqueue.models.attempt import Attempt
from django_pgqueue.models.message import Message
from django_pgqueue.models.queryset import MessageQuerySet
from django_pgqueue.models.queue import Queue
from django_pgqueue.models.topic import Binding
from django_pgqueue.types import Delay, Maintained, Metrics, Receipt, Settled, State

class QueueOperations:
    """The operations of ``queue("orders")``."""

    def create(
        self,
        *,
        unlogged: bool | None = None,
        partition_interval: dt.timedelta | float | None = None,
        retention: dt.timedelta | float | None = None,
        visibility_timeout: int = 30,
        max_deliveries: int = 20,
        dead_letter_queue: str | Queue | None = None,
        dedup_window: dt.timedelta | float | None = None,
        age_limit: dt.timedelta | float | None = None,
        notify: bool = True,
    ) -> Queue:
        """Make a queue. If it exists, return it unchanged."""

    async def acreate(
        self,
        *,
        unlogged: bool | None = None,
        partition_interval: dt.timedelta | float | None = None,
        retention: dt.timedelta | float | None = None,
        visibility_timeout: int = 30,
        max_deliveries: int = 20,
        dead_letter_queue: str | Queue | None = None,
        dedup_window: dt.timedelta | float | None = None,
        age_limit: dt.timedelta | float | None = None,
        notify: bool = True,
    ) -> Queue:
        """Make a queue. If it exists, return it unchanged."""

    def drop(self) -> bool:
        """Drop a queue with its messages and its archive. Returns False if there is none."""

    async def adrop(self) -> bool:
        """Drop a queue with its messages and its archive. Returns False if there is none."""

    def send(
        self,
        body: Any,
        *,
        headers: dict[str, Any] | None = None,
        delay: Delay | None = 0,
        priority: int = 0,
        group: str | None = None,
        dedup_key: str | None = None,
    ) -> int:
        """Send one message and return its id."""

    async def asend(
        self,
        body: Any,
        *,
        headers: dict[str, Any] | None = None,
        delay: Delay | None = 0,
        priority: int = 0,
        group: str | None = None,
        dedup_key: str | None = None,
    ) -> int:
        """Send one message and return its id."""

    def send_batch(
        self,
        bodies: Sequence[Any],
        *,
        headers: Sequence[dict[str, Any] | None] | dict[str, Any] | None = None,
        delay: Delay | None = 0,
        priority: int = 0,
        group: Sequence[str | None] | str | None = None,
        dedup_key: Sequence[str | None] | None = None,
    ) -> list[int]:
        """Send many messages at once, all or none, and return their ids in the same order."""

    async def asend_batch(
        self,
        bodies: Sequence[Any],
        *,
        headers: Sequence[dict[str, Any] | None] | dict[str, Any] | None = None,
        delay: Delay | None = 0,
        priority: int = 0,
        group: Sequence[str | None] | str | None = None,
        dedup_key: Sequence[str | None] | None = None,
    ) -> list[int]:
        """Send many messages at once, all or none, and return their ids in the same order."""

    def read(
        self,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int | None = 1,
        conditional: dict[str, Any] | None = None,
        in_transaction: bool = False,
    ) -> list[Message]:
        """Lease up to ``qty`` messages, each hidden from other readers for ``vt``."""

    async def aread(
        self,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int | None = 1,
        conditional: dict[str, Any] | None = None,
        in_transaction: bool = False,
    ) -> list[Message]:
        """Lease up to ``qty`` messages, each hidden from other readers for ``vt``."""

    def read_with_poll(
        self,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int | None = 1,
        max_poll_seconds: float = 5,
        poll_interval_ms: float = 100,
        conditional: dict[str, Any] | None = None,
    ) -> list[Message]:
        """Read, and when there is nothing wait for it."""

    async def aread_with_poll(
        self,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int | None = 1,
        max_poll_seconds: float = 5,
        poll_interval_ms: float = 100,
        conditional: dict[str, Any] | None = None,
    ) -> list[Message]:
        """Read, and when there is nothing wait for it."""

    def read_grouped(
        self, *, vt: float | dt.timedelta | None = None, qty: int = 1, in_transaction: bool = False
    ) -> list[Message]:
        """Lease up to ``qty`` messages: all there are of the first group, then of the next."""

    async def aread_grouped(
        self, *, vt: float | dt.timedelta | None = None, qty: int = 1, in_transaction: bool = False
    ) -> list[Message]:
        """Lease up to ``qty`` messages: all there are of the first group, then of the next."""

    def read_grouped_with_poll(
        self,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int = 1,
        max_poll_seconds: float = 5,
        poll_interval_ms: float = 100,
    ) -> list[Message]:
        """``read_grouped``, and when there is nothing wait for it as ``read_with_poll`` does."""

    async def aread_grouped_with_poll(
        self,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int = 1,
        max_poll_seconds: float = 5,
        poll_interval_ms: float = 100,
    ) -> list[Message]:
        """``read_grouped``, and when there is nothing wait for it as ``read_with_poll`` does."""

    def read_grouped_rr(
        self, *, vt: float | dt.timedelta | None = None, qty: int = 1, in_transaction: bool = False
    ) -> list[Message]:
        """Lease up to ``qty`` messages in rounds: one of each group, then the second of each."""

    async def aread_grouped_rr(
        self, *, vt: float | dt.timedelta | None = None, qty: int = 1, in_transaction: bool = False
    ) -> list[Message]:
        """Lease up to ``qty`` messages in rounds: one of each group, then the second of each."""

    def read_grouped_rr_with_poll(
        self,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int = 1,
        max_poll_seconds: float = 5,
        poll_interval_ms: float = 100,
    ) -> list[Message]:
        """``read_grouped_rr``, and when there is nothing wait for it as ``read_with_poll`` does."""

    async def aread_grouped_rr_with_poll(
        self,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int = 1,
        max_poll_seconds: float = 5,
        poll_interval_ms: float = 100,
    ) -> list[Message]:
        """``read_grouped_rr``, and when there is nothing wait for it as ``read_with_poll`` does."""

    def read_grouped_head(
        self,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int | None = 1,
        conditional: dict[str, Any] | None = None,
        in_transaction: bool = False,
    ) -> list[Message]:
        """Lease up to ``qty`` messages, each hidden from other readers for ``vt``."""

    async def aread_grouped_head(
        self,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int | None = 1,
        conditional: dict[str, Any] | None = None,
        in_transaction: bool = False,
    ) -> list[Message]:
        """Lease up to ``qty`` messages, each hidden from other readers for ``vt``."""

    def read_grouped_head_with_poll(
        self,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int | None = 1,
        max_poll_seconds: float = 5,
        poll_interval_ms: float = 100,
        conditional: dict[str, Any] | None = None,
    ) -> list[Message]:
        """Read, and when there is nothing wait for it."""

    async def aread_grouped_head_with_poll(
        self,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int | None = 1,
        max_poll_seconds: float = 5,
        poll_interval_ms: float = 100,
        conditional: dict[str, Any] | None = None,
    ) -> list[Message]:
        """Read, and when there is nothing wait for it."""

    def peek(
        self, *, qty: int | None = 1, conditional: dict[str, Any] | None = None
    ) -> list[Message]:
        """The messages that a read would find, without leasing or counting anything."""

    async def apeek(
        self, *, qty: int | None = 1, conditional: dict[str, Any] | None = None
    ) -> list[Message]:
        """The messages that a read would find, without leasing or counting anything."""

    def pop(self, qty: int | None = 1) -> list[Message]:
        """Take up to ``qty`` messages and delete them at once: delivered at most once."""

    async def apop(self, qty: int | None = 1) -> list[Message]:
        """Take up to ``qty`` messages and delete them at once: delivered at most once."""

    def next_due(self) -> float:
        """Seconds until the next deferred message is due; infinity when none waits."""

    async def anext_due(self) -> float:
        """Seconds until the next deferred message is due; infinity when none waits."""

    def drained(self) -> bool:
        """Whether nothing is ready, due or waiting to be tried again."""

    async def adrained(self) -> bool:
        """Whether nothing is ready, due or waiting to be tried again."""

    def archive(
        self, receipts_or_ids: Target | Iterable[Target], *, in_flight: bool = True
    ) -> Settled:
        """Done: move messages from the queue to the archive, as COMPLETED."""

    async def aarchive(
        self, receipts_or_ids: Target | Iterable[Target], *, in_flight: bool = True
    ) -> Settled:
        """Done: move messages from the queue to the archive, as COMPLETED."""

    def cancel(
        self,
        receipts_or_ids: Target | Iterable[Target],
        *,
        reason: str | None = None,
        in_flight: bool = True,
    ) -> Settled:
        """Call messages off: move them to the archive as CANCELLED, whatever state they are in."""

    async def acancel(
        self,
        receipts_or_ids: Target | Iterable[Target],
        *,
        reason: str | None = None,
        in_flight: bool = True,
    ) -> Settled:
        """Call messages off: move them to the archive as CANCELLED, whatever state they are in."""

    def delete(
        self, receipts_or_ids: Target | Iterable[Target], *, in_flight: bool = True
    ) -> Settled:
        """Delete messages from the queue for good, bodies too. The archive is not touched."""

    async def adelete(
        self, receipts_or_ids: Target | Iterable[Target], *, in_flight: bool = True
    ) -> Settled:
        """Delete messages from the queue for good, bodies too. The archive is not touched."""

    def set_vt(
        self,
        receipts_or_ids: Target | Iterable[Target],
        vt: float | dt.timedelta | dt.datetime,
        *,
        in_flight: bool = True,
    ) -> Settled:
        """Make messages readable ``vt`` from now (seconds, timedelta or an aware datetime)."""

    async def aset_vt(
        self,
        receipts_or_ids: Target | Iterable[Target],
        vt: float | dt.timedelta | dt.datetime,
        *,
        in_flight: bool = True,
    ) -> Settled:
        """Make messages readable ``vt`` from now (seconds, timedelta or an aware datetime)."""

    def complete(
        self,
        receipts: Iterable[Receipt],
        *,
        ran: bool = True,
        results: Mapping[Receipt, Any] | None = None,
    ) -> Settled:
        """Complete messages: move them to the archive as COMPLETED."""

    async def acomplete(
        self,
        receipts: Iterable[Receipt],
        *,
        ran: bool = True,
        results: Mapping[Receipt, Any] | None = None,
    ) -> Settled:
        """Complete messages: move them to the archive as COMPLETED."""

    def retry(
        self,
        delays: Mapping[Receipt, float],
        *,
        ran: bool = True,
        errors: Mapping[Receipt, str] | None = None,
        failures: Mapping[Receipt, Failure] | None = None,
        process_id: int | None = None,
    ) -> Settled:
        """Retry messages: each is due again after a delay."""

    async def aretry(
        self,
        delays: Mapping[Receipt, float],
        *,
        ran: bool = True,
        errors: Mapping[Receipt, str] | None = None,
        failures: Mapping[Receipt, Failure] | None = None,
        process_id: int | None = None,
    ) -> Settled:
        """Retry messages: each is due again after a delay."""

    def release(self, receipts: Iterable[Receipt]) -> Settled:
        """Release messages whose handler did not start, or was interrupted."""

    async def arelease(self, receipts: Iterable[Receipt]) -> Settled:
        """Release messages whose handler did not start, or was interrupted."""

    def fail(
        self,
        errors: Mapping[Receipt, str],
        *,
        reason: str = "rejected",
        ran: bool = True,
        failures: Mapping[Receipt, Failure] | None = None,
        process_id: int | None = None,
    ) -> Settled:
        """Fail messages: move them to the dead-letter queue, or without one to the archive as FAILED."""

    async def afail(
        self,
        errors: Mapping[Receipt, str],
        *,
        reason: str = "rejected",
        ran: bool = True,
        failures: Mapping[Receipt, Failure] | None = None,
        process_id: int | None = None,
    ) -> Settled:
        """Fail messages: move them to the dead-letter queue, or without one to the archive as FAILED."""

    def settle(
        self,
        outcomes: Mapping[Receipt, Outcome],
        *,
        ran: bool = True,
        process_id: int | None = None,
    ) -> Settled:
        """Write the outcome of each message, one statement for each kind of outcome."""

    async def asettle(
        self,
        outcomes: Mapping[Receipt, Outcome],
        *,
        ran: bool = True,
        process_id: int | None = None,
    ) -> Settled:
        """Write the outcome of each message, one statement for each kind of outcome."""

    def purge(self, *, progress: Any = None) -> int:
        """Delete every live message, ready, delayed or in flight; returns how many."""

    async def apurge(self, *, progress: Any = None) -> int:
        """Delete every live message, ready, delayed or in flight; returns how many."""

    def result(self, message_id: int, *, timeout: float | None = 0) -> Any:
        """The return value of a message's handler, if its consumer has ``keep_result``."""

    def wait(self, message_id: int, timeout: float | None = None) -> Any:
        """Wait until a message is done: :func:`result` that by default waits for ever."""

    def attempts(self, message_id: int) -> list[Attempt]:
        """The stored failed attempts of a message, the oldest first."""

    async def aattempts(self, message_id: int) -> list[Attempt]:
        """The stored failed attempts of a message, the oldest first."""

    def redrive(
        self,
        *,
        to: str | None = None,
        ids: Iterable[int] | None = None,
        conditional: dict[str, Any] | None = None,
        rate: float | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Send dead letters back, each to the queue it came from; returns how many went."""

    async def aredrive(
        self,
        *,
        to: str | None = None,
        ids: Iterable[int] | None = None,
        conditional: dict[str, Any] | None = None,
        rate: float | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Send dead letters back, each to the queue it came from; returns how many went."""

    def replay(
        self,
        *,
        to: str | None = None,
        ids: Iterable[int] | None = None,
        state: State | str | None = None,
        conditional: dict[str, Any] | None = None,
        rate: float | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Send archived messages again, to their queue or another; returns how many were sent."""

    async def areplay(
        self,
        *,
        to: str | None = None,
        ids: Iterable[int] | None = None,
        state: State | str | None = None,
        conditional: dict[str, Any] | None = None,
        rate: float | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Send archived messages again, to their queue or another; returns how many were sent."""

    def metrics(self) -> Metrics:
        """How much one queue holds now; see :class:`django_pgqueue.types.Metrics`."""

    async def ametrics(self) -> Metrics:
        """How much one queue holds now; see :class:`django_pgqueue.types.Metrics`."""

    def maintain(
        self,
        *,
        patience: float = 1.0,
        stall: float = 0.1,
        progress: Callable[[int], None] | None = None,
    ) -> Maintained:
        """Maintain one queue: make partitions ahead, remove messages whose retention is over."""

    async def amaintain(
        self,
        *,
        patience: float = 1.0,
        stall: float = 0.1,
        progress: Callable[[int], None] | None = None,
    ) -> Maintained:
        """Maintain one queue: make partitions ahead, remove messages whose retention is over."""

    def repartition(
        self,
        partition_interval: dt.timedelta | float | None,
        *,
        progress: maintenance.Progress | None = None,
    ) -> bool:
        """Partition a queue by time, or change the interval of its partitions."""

    async def arepartition(
        self,
        partition_interval: dt.timedelta | float | None,
        *,
        progress: maintenance.Progress | None = None,
    ) -> bool:
        """Partition a queue by time, or change the interval of its partitions."""

    async def aresult(self, message_id: int, *, timeout: float | None = 0) -> Any:
        """The async twin of :meth:`result`; other tasks of the loop run while it waits."""

class MessageManager(models.Manager[Message]):
    """All operations on queues, with the queue as first argument, and operations on databases."""

    def create_queue(
        self,
        name: str,
        *,
        unlogged: bool | None = None,
        partition_interval: dt.timedelta | float | None = None,
        retention: dt.timedelta | float | None = None,
        visibility_timeout: int = 30,
        max_deliveries: int = 20,
        dead_letter_queue: str | Queue | None = None,
        dedup_window: dt.timedelta | float | None = None,
        age_limit: dt.timedelta | float | None = None,
        notify: bool = True,
    ) -> Queue:
        """Make a queue. If it exists, return it unchanged."""

    async def acreate_queue(
        self,
        name: str,
        *,
        unlogged: bool | None = None,
        partition_interval: dt.timedelta | float | None = None,
        retention: dt.timedelta | float | None = None,
        visibility_timeout: int = 30,
        max_deliveries: int = 20,
        dead_letter_queue: str | Queue | None = None,
        dedup_window: dt.timedelta | float | None = None,
        age_limit: dt.timedelta | float | None = None,
        notify: bool = True,
    ) -> Queue:
        """Make a queue. If it exists, return it unchanged."""

    def list_queues(self) -> list[Queue]:
        """Every queue, by name."""

    async def alist_queues(self) -> list[Queue]:
        """Every queue, by name."""

    def drop_queue(self, name: str | Queue) -> bool:
        """Drop a queue with its messages and its archive. Returns False if there is none."""

    async def adrop_queue(self, name: str | Queue) -> bool:
        """Drop a queue with its messages and its archive. Returns False if there is none."""

    def metrics_all(self) -> list[Metrics]:
        """The metrics of every queue, by name."""

    async def ametrics_all(self) -> list[Metrics]:
        """The metrics of every queue, by name."""

    def maintain_all(
        self,
        queues: Iterable[str | Queue] | None = None,
        *,
        patience: float = 1.0,
        stall: float = 0.1,
        progress: Callable[[int], None] | None = None,
    ) -> list[Maintained]:
        """Run ``maintain`` for every queue, by name, or for the given queues."""

    async def amaintain_all(
        self,
        queues: Iterable[str | Queue] | None = None,
        *,
        patience: float = 1.0,
        stall: float = 0.1,
        progress: Callable[[int], None] | None = None,
    ) -> list[Maintained]:
        """Run ``maintain`` for every queue, by name, or for the given queues."""

    def bind(self, pattern: str, queue: str | Queue) -> bool:
        """Bind a pattern to a queue: it gets a copy of each message published with a matching key."""

    async def abind(self, pattern: str, queue: str | Queue) -> bool:
        """Bind a pattern to a queue: it gets a copy of each message published with a matching key."""

    def unbind(self, pattern: str, queue: str | Queue) -> bool:
        """Remove a binding. Returns False if there is none."""

    async def aunbind(self, pattern: str, queue: str | Queue) -> bool:
        """Remove a binding. Returns False if there is none."""

    def list_bindings(self, queue: str | Queue | None = None) -> list[Binding]:
        """All bindings, or those of one queue, ordered by pattern."""

    async def alist_bindings(self, queue: str | Queue | None = None) -> list[Binding]:
        """All bindings, or those of one queue, ordered by pattern."""

    def test_routing(self, key: str) -> dict[str, list[str]]:
        """The names of the queues that would get a key, each with the matching patterns."""

    async def atest_routing(self, key: str) -> dict[str, list[str]]:
        """The names of the queues that would get a key, each with the matching patterns."""

    def publish(
        self,
        key: str,
        body: Any,
        *,
        headers: dict[str, Any] | None = None,
        delay: Delay | None = 0,
        priority: int = 0,
        group: str | None = None,
        dedup_key: str | None = None,
    ) -> dict[str, int]:
        """Send one copy to each queue that is bound to the key. Returns the ids by queue name."""

    async def apublish(
        self,
        key: str,
        body: Any,
        *,
        headers: dict[str, Any] | None = None,
        delay: Delay | None = 0,
        priority: int = 0,
        group: str | None = None,
        dedup_key: str | None = None,
    ) -> dict[str, int]:
        """Send one copy to each queue that is bound to the key. Returns the ids by queue name."""

    def publish_batch(
        self,
        key: str,
        bodies: Sequence[Any],
        *,
        headers: Sequence[dict[str, Any] | None] | dict[str, Any] | None = None,
        delay: Delay | None = 0,
        priority: int = 0,
        group: Sequence[str | None] | str | None = None,
        dedup_key: Sequence[str | None] | None = None,
    ) -> dict[str, list[int]]:
        """Publish several messages with one key. Returns lists of ids by queue name."""

    async def apublish_batch(
        self,
        key: str,
        bodies: Sequence[Any],
        *,
        headers: Sequence[dict[str, Any] | None] | dict[str, Any] | None = None,
        delay: Delay | None = 0,
        priority: int = 0,
        group: Sequence[str | None] | str | None = None,
        dedup_key: Sequence[str | None] | None = None,
    ) -> dict[str, list[int]]:
        """Publish several messages with one key. Returns lists of ids by queue name."""

    def get_queryset(self) -> MessageQuerySet:
        """A queryset of messages."""

    def using(self, alias: str | None) -> MessageManager:  # type: ignore[override]
        """A manager with the same operations in another database."""

    def resolve(self, queue: str | Queue, using: str | None = None) -> Queue:
        """The queue with this name. Raises QueueNotFound."""

    def send(
        self,
        queue: str | Queue,
        body: Any,
        *,
        headers: dict[str, Any] | None = None,
        delay: Delay | None = 0,
        priority: int = 0,
        group: str | None = None,
        dedup_key: str | None = None,
    ) -> int:
        """Send one message and return its id."""

    async def asend(
        self,
        queue: str | Queue,
        body: Any,
        *,
        headers: dict[str, Any] | None = None,
        delay: Delay | None = 0,
        priority: int = 0,
        group: str | None = None,
        dedup_key: str | None = None,
    ) -> int:
        """Send one message and return its id."""

    def send_batch(
        self,
        queue: str | Queue,
        bodies: Sequence[Any],
        *,
        headers: Sequence[dict[str, Any] | None] | dict[str, Any] | None = None,
        delay: Delay | None = 0,
        priority: int = 0,
        group: Sequence[str | None] | str | None = None,
        dedup_key: Sequence[str | None] | None = None,
    ) -> list[int]:
        """Send many messages at once, all or none, and return their ids in the same order."""

    async def asend_batch(
        self,
        queue: str | Queue,
        bodies: Sequence[Any],
        *,
        headers: Sequence[dict[str, Any] | None] | dict[str, Any] | None = None,
        delay: Delay | None = 0,
        priority: int = 0,
        group: Sequence[str | None] | str | None = None,
        dedup_key: Sequence[str | None] | None = None,
    ) -> list[int]:
        """Send many messages at once, all or none, and return their ids in the same order."""

    def read(
        self,
        queue: str | Queue,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int | None = 1,
        conditional: dict[str, Any] | None = None,
        in_transaction: bool = False,
    ) -> list[Message]:
        """Lease up to ``qty`` messages, each hidden from other readers for ``vt``."""

    async def aread(
        self,
        queue: str | Queue,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int | None = 1,
        conditional: dict[str, Any] | None = None,
        in_transaction: bool = False,
    ) -> list[Message]:
        """Lease up to ``qty`` messages, each hidden from other readers for ``vt``."""

    def read_with_poll(
        self,
        queue: str | Queue,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int | None = 1,
        max_poll_seconds: float = 5,
        poll_interval_ms: float = 100,
        conditional: dict[str, Any] | None = None,
    ) -> list[Message]:
        """Read, and when there is nothing wait for it."""

    async def aread_with_poll(
        self,
        queue: str | Queue,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int | None = 1,
        max_poll_seconds: float = 5,
        poll_interval_ms: float = 100,
        conditional: dict[str, Any] | None = None,
    ) -> list[Message]:
        """Read, and when there is nothing wait for it."""

    def read_grouped(
        self,
        queue: str | Queue,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int = 1,
        in_transaction: bool = False,
    ) -> list[Message]:
        """Lease up to ``qty`` messages: all there are of the first group, then of the next."""

    async def aread_grouped(
        self,
        queue: str | Queue,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int = 1,
        in_transaction: bool = False,
    ) -> list[Message]:
        """Lease up to ``qty`` messages: all there are of the first group, then of the next."""

    def read_grouped_with_poll(
        self,
        queue: str | Queue,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int = 1,
        max_poll_seconds: float = 5,
        poll_interval_ms: float = 100,
    ) -> list[Message]:
        """``read_grouped``, and when there is nothing wait for it as ``read_with_poll`` does."""

    async def aread_grouped_with_poll(
        self,
        queue: str | Queue,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int = 1,
        max_poll_seconds: float = 5,
        poll_interval_ms: float = 100,
    ) -> list[Message]:
        """``read_grouped``, and when there is nothing wait for it as ``read_with_poll`` does."""

    def read_grouped_rr(
        self,
        queue: str | Queue,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int = 1,
        in_transaction: bool = False,
    ) -> list[Message]:
        """Lease up to ``qty`` messages in rounds: one of each group, then the second of each."""

    async def aread_grouped_rr(
        self,
        queue: str | Queue,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int = 1,
        in_transaction: bool = False,
    ) -> list[Message]:
        """Lease up to ``qty`` messages in rounds: one of each group, then the second of each."""

    def read_grouped_rr_with_poll(
        self,
        queue: str | Queue,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int = 1,
        max_poll_seconds: float = 5,
        poll_interval_ms: float = 100,
    ) -> list[Message]:
        """``read_grouped_rr``, and when there is nothing wait for it as ``read_with_poll`` does."""

    async def aread_grouped_rr_with_poll(
        self,
        queue: str | Queue,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int = 1,
        max_poll_seconds: float = 5,
        poll_interval_ms: float = 100,
    ) -> list[Message]:
        """``read_grouped_rr``, and when there is nothing wait for it as ``read_with_poll`` does."""

    def read_grouped_head(
        self,
        queue: str | Queue,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int | None = 1,
        conditional: dict[str, Any] | None = None,
        in_transaction: bool = False,
    ) -> list[Message]:
        """Lease up to ``qty`` messages, each hidden from other readers for ``vt``."""

    async def aread_grouped_head(
        self,
        queue: str | Queue,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int | None = 1,
        conditional: dict[str, Any] | None = None,
        in_transaction: bool = False,
    ) -> list[Message]:
        """Lease up to ``qty`` messages, each hidden from other readers for ``vt``."""

    def read_grouped_head_with_poll(
        self,
        queue: str | Queue,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int | None = 1,
        max_poll_seconds: float = 5,
        poll_interval_ms: float = 100,
        conditional: dict[str, Any] | None = None,
    ) -> list[Message]:
        """Read, and when there is nothing wait for it."""

    async def aread_grouped_head_with_poll(
        self,
        queue: str | Queue,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int | None = 1,
        max_poll_seconds: float = 5,
        poll_interval_ms: float = 100,
        conditional: dict[str, Any] | None = None,
    ) -> list[Message]:
        """Read, and when there is nothing wait for it."""

    def peek(
        self, queue: str | Queue, *, qty: int | None = 1, conditional: dict[str, Any] | None = None
    ) -> list[Message]:
        """The messages that a read would find, without leasing or counting anything."""

    async def apeek(
        self, queue: str | Queue, *, qty: int | None = 1, conditional: dict[str, Any] | None = None
    ) -> list[Message]:
        """The messages that a read would find, without leasing or counting anything."""

    def pop(self, queue: str | Queue, qty: int | None = 1) -> list[Message]:
        """Take up to ``qty`` messages and delete them at once: delivered at most once."""

    async def apop(self, queue: str | Queue, qty: int | None = 1) -> list[Message]:
        """Take up to ``qty`` messages and delete them at once: delivered at most once."""

    def next_due(self, queue: str | Queue) -> float:
        """Seconds until the next deferred message is due; infinity when none waits."""

    async def anext_due(self, queue: str | Queue) -> float:
        """Seconds until the next deferred message is due; infinity when none waits."""

    def drained(self, queue: str | Queue) -> bool:
        """Whether nothing is ready, due or waiting to be tried again."""

    async def adrained(self, queue: str | Queue) -> bool:
        """Whether nothing is ready, due or waiting to be tried again."""

    def archive(
        self,
        queue: str | Queue,
        receipts_or_ids: Target | Iterable[Target],
        *,
        in_flight: bool = True,
    ) -> Settled:
        """Done: move messages from the queue to the archive, as COMPLETED."""

    async def aarchive(
        self,
        queue: str | Queue,
        receipts_or_ids: Target | Iterable[Target],
        *,
        in_flight: bool = True,
    ) -> Settled:
        """Done: move messages from the queue to the archive, as COMPLETED."""

    def cancel(
        self,
        queue: str | Queue,
        receipts_or_ids: Target | Iterable[Target],
        *,
        reason: str | None = None,
        in_flight: bool = True,
    ) -> Settled:
        """Call messages off: move them to the archive as CANCELLED, whatever state they are in."""

    async def acancel(
        self,
        queue: str | Queue,
        receipts_or_ids: Target | Iterable[Target],
        *,
        reason: str | None = None,
        in_flight: bool = True,
    ) -> Settled:
        """Call messages off: move them to the archive as CANCELLED, whatever state they are in."""

    def delete(
        self,
        queue: str | Queue,
        receipts_or_ids: Target | Iterable[Target],
        *,
        in_flight: bool = True,
    ) -> Settled:
        """Delete messages from the queue for good, bodies too. The archive is not touched."""

    async def adelete(
        self,
        queue: str | Queue,
        receipts_or_ids: Target | Iterable[Target],
        *,
        in_flight: bool = True,
    ) -> Settled:
        """Delete messages from the queue for good, bodies too. The archive is not touched."""

    def set_vt(
        self,
        queue: str | Queue,
        receipts_or_ids: Target | Iterable[Target],
        vt: float | dt.timedelta | dt.datetime,
        *,
        in_flight: bool = True,
    ) -> Settled:
        """Make messages readable ``vt`` from now (seconds, timedelta or an aware datetime)."""

    async def aset_vt(
        self,
        queue: str | Queue,
        receipts_or_ids: Target | Iterable[Target],
        vt: float | dt.timedelta | dt.datetime,
        *,
        in_flight: bool = True,
    ) -> Settled:
        """Make messages readable ``vt`` from now (seconds, timedelta or an aware datetime)."""

    def complete(
        self,
        queue: str | Queue,
        receipts: Iterable[Receipt],
        *,
        ran: bool = True,
        results: Mapping[Receipt, Any] | None = None,
    ) -> Settled:
        """Complete messages: move them to the archive as COMPLETED."""

    async def acomplete(
        self,
        queue: str | Queue,
        receipts: Iterable[Receipt],
        *,
        ran: bool = True,
        results: Mapping[Receipt, Any] | None = None,
    ) -> Settled:
        """Complete messages: move them to the archive as COMPLETED."""

    def retry(
        self,
        queue: str | Queue,
        delays: Mapping[Receipt, float],
        *,
        ran: bool = True,
        errors: Mapping[Receipt, str] | None = None,
        failures: Mapping[Receipt, Failure] | None = None,
        process_id: int | None = None,
    ) -> Settled:
        """Retry messages: each is due again after a delay."""

    async def aretry(
        self,
        queue: str | Queue,
        delays: Mapping[Receipt, float],
        *,
        ran: bool = True,
        errors: Mapping[Receipt, str] | None = None,
        failures: Mapping[Receipt, Failure] | None = None,
        process_id: int | None = None,
    ) -> Settled:
        """Retry messages: each is due again after a delay."""

    def release(self, queue: str | Queue, receipts: Iterable[Receipt]) -> Settled:
        """Release messages whose handler did not start, or was interrupted."""

    async def arelease(self, queue: str | Queue, receipts: Iterable[Receipt]) -> Settled:
        """Release messages whose handler did not start, or was interrupted."""

    def fail(
        self,
        queue: str | Queue,
        errors: Mapping[Receipt, str],
        *,
        reason: str = "rejected",
        ran: bool = True,
        failures: Mapping[Receipt, Failure] | None = None,
        process_id: int | None = None,
    ) -> Settled:
        """Fail messages: move them to the dead-letter queue, or without one to the archive as FAILED."""

    async def afail(
        self,
        queue: str | Queue,
        errors: Mapping[Receipt, str],
        *,
        reason: str = "rejected",
        ran: bool = True,
        failures: Mapping[Receipt, Failure] | None = None,
        process_id: int | None = None,
    ) -> Settled:
        """Fail messages: move them to the dead-letter queue, or without one to the archive as FAILED."""

    def settle(
        self,
        queue: str | Queue,
        outcomes: Mapping[Receipt, Outcome],
        *,
        ran: bool = True,
        process_id: int | None = None,
    ) -> Settled:
        """Write the outcome of each message, one statement for each kind of outcome."""

    async def asettle(
        self,
        queue: str | Queue,
        outcomes: Mapping[Receipt, Outcome],
        *,
        ran: bool = True,
        process_id: int | None = None,
    ) -> Settled:
        """Write the outcome of each message, one statement for each kind of outcome."""

    def purge(self, queue: str | Queue, *, progress: Any = None) -> int:
        """Delete every live message, ready, delayed or in flight; returns how many."""

    async def apurge(self, queue: str | Queue, *, progress: Any = None) -> int:
        """Delete every live message, ready, delayed or in flight; returns how many."""

    def result(self, queue: str | Queue, message_id: int, *, timeout: float | None = 0) -> Any:
        """The return value of a message's handler, if its consumer has ``keep_result``."""

    def wait(self, queue: str | Queue, message_id: int, timeout: float | None = None) -> Any:
        """Wait until a message is done: :func:`result` that by default waits for ever."""

    def attempts(self, queue: str | Queue, message_id: int) -> list[Attempt]:
        """The stored failed attempts of a message, the oldest first."""

    async def aattempts(self, queue: str | Queue, message_id: int) -> list[Attempt]:
        """The stored failed attempts of a message, the oldest first."""

    def redrive(
        self,
        queue: str | Queue,
        *,
        to: str | None = None,
        ids: Iterable[int] | None = None,
        conditional: dict[str, Any] | None = None,
        rate: float | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Send dead letters back, each to the queue it came from; returns how many went."""

    async def aredrive(
        self,
        queue: str | Queue,
        *,
        to: str | None = None,
        ids: Iterable[int] | None = None,
        conditional: dict[str, Any] | None = None,
        rate: float | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Send dead letters back, each to the queue it came from; returns how many went."""

    def replay(
        self,
        queue: str | Queue,
        *,
        to: str | None = None,
        ids: Iterable[int] | None = None,
        state: State | str | None = None,
        conditional: dict[str, Any] | None = None,
        rate: float | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Send archived messages again, to their queue or another; returns how many were sent."""

    async def areplay(
        self,
        queue: str | Queue,
        *,
        to: str | None = None,
        ids: Iterable[int] | None = None,
        state: State | str | None = None,
        conditional: dict[str, Any] | None = None,
        rate: float | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Send archived messages again, to their queue or another; returns how many were sent."""

    def metrics(self, queue: str | Queue) -> Metrics:
        """How much one queue holds now; see :class:`django_pgqueue.types.Metrics`."""

    async def ametrics(self, queue: str | Queue) -> Metrics:
        """How much one queue holds now; see :class:`django_pgqueue.types.Metrics`."""

    def maintain(
        self,
        queue: str | Queue,
        *,
        patience: float = 1.0,
        stall: float = 0.1,
        progress: Callable[[int], None] | None = None,
    ) -> Maintained:
        """Maintain one queue: make partitions ahead, remove messages whose retention is over."""

    async def amaintain(
        self,
        queue: str | Queue,
        *,
        patience: float = 1.0,
        stall: float = 0.1,
        progress: Callable[[int], None] | None = None,
    ) -> Maintained:
        """Maintain one queue: make partitions ahead, remove messages whose retention is over."""

    def repartition(
        self,
        queue: str | Queue,
        partition_interval: dt.timedelta | float | None,
        *,
        progress: maintenance.Progress | None = None,
    ) -> bool:
        """Partition a queue by time, or change the interval of its partitions."""

    async def arepartition(
        self,
        queue: str | Queue,
        partition_interval: dt.timedelta | float | None,
        *,
        progress: maintenance.Progress | None = None,
    ) -> bool:
        """Partition a queue by time, or change the interval of its partitions."""

    async def aresult(
        self, queue: str | Queue, message_id: int, *, timeout: float | None = 0
    ) -> Any:
        """The async twin of :meth:`result`; other tasks of the loop run while it waits."""
