"""Add Django signals to the engine's sends and reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django_pgqueue import signals
from django_pgqueue.engine.open_queue import OpenQueue
from django_pgqueue.engine.rows import Deliveries, Delivery
from django_pgqueue.engine.send import sending
from django_pgqueue.types import Sent, was_skipped


def send(queue: OpenQueue, /, body: Any, *, headers: Any = None, **options: Any) -> Sent:
    """Call :func:`sending.send`; send ``messages_sending`` before and ``messages_sent`` after."""
    if signals.messages_sending.receivers:
        headers = _carried(queue, headers)
    pk = sending.send(queue, body, headers=headers, **options)
    if signals.messages_sent.receivers:
        _announce(queue, [pk])
    return pk


def send_batch(
    queue: OpenQueue, /, bodies: Any, *, headers: Any = None, **options: Any
) -> list[Sent]:
    """Call :func:`sending.send_batch`, and send the same signals as :func:`send`."""
    if signals.messages_sending.receivers:
        bodies = sending.listed(bodies)
        headers = _carried_by_each(queue, headers, len(bodies))
    ids = sending.send_batch(queue, bodies, headers=headers, **options)
    if signals.messages_sent.receivers:
        _announce(queue, ids)
    return ids


def announce_ended(queue: OpenQueue, found: Sequence[Delivery]) -> None:
    """Send ``messages_exhausted`` and ``messages_expired`` for messages that a read ended."""
    if isinstance(found, Deliveries):
        if found.exhausted:
            signals.messages_exhausted.send_robust(queue.name, receipts=found.exhausted)
        if found.expired:
            signals.messages_expired.send_robust(queue.name, ids=found.expired)


def _announce(queue: OpenQueue, ids: Sequence[int]) -> None:
    """Send ``messages_sent`` for the messages that were not skipped as duplicates."""
    written = [pk for pk in ids if not was_skipped(pk)]
    if written:
        signals.messages_sent.send(queue.name, ids=written)


def _carried(queue: OpenQueue, headers: Any, count: int = 1) -> Any:
    """Return the headers, plus those that receivers of ``messages_sending`` add."""
    if headers is not None and not isinstance(headers, dict):
        return headers
    carried = dict(headers or {})
    signals.messages_sending.send_robust(queue.name, headers=carried, count=count)
    return carried or headers


def _carried_by_each(queue: OpenQueue, headers: Any, count: int) -> Any:
    """Return the headers of a batch. Receivers are called once, and add to every message."""
    if headers is None or isinstance(headers, dict):
        return _carried(queue, headers, count)
    added = _carried(queue, None, count)
    if not added:
        return headers
    return [
        {**added, **(each or {})} if isinstance(each, (dict, type(None))) else each
        for each in headers
    ]
