"""Test helpers that assert which messages were sent.

They query the database in the test's transaction, so they also find messages that were sent in
bulk, by COPY or by plain SQL.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections, models

from django_pgqueue.engine.subscriptions.reading import peek_next
from django_pgqueue.handlers import autodiscover, handlers
from django_pgqueue.models import LiveMessage, Message, Queue
from django_pgqueue.testing.draining import drain

_ANY: Any = object()
#: How many messages a failed assertion shows.
_SHOWN = 10


def assert_enqueued(
    queue: Any,
    *,
    body: Any = _ANY,
    contains: Any = _ANY,
    headers: dict[str, Any] | None = None,
    priority: int | None = None,
    group: str | None = None,
    args: list[Any] | None = None,
    kwargs: dict[str, Any] | None = None,
    count: int | None = None,
    using: str | None = None,
) -> list[Message]:
    """Return the matching messages of a queue.

    Raises AssertionError unless ``count`` messages match. If ``count`` is not given, at least one
    must match. Archived messages do not count. ``body`` must equal the message's body. ``contains``
    must be contained in the body, and ``headers`` in the headers, in the sense of PostgreSQL's
    ``@>``: ``{"order": 7}`` matches ``{"order": 7, "total": 3}``. In place of the queue's name you
    can pass a task, with the ``args`` and ``kwargs`` of its run. A subscription's messages are its
    own, and those of its source that it holds or has not read.

    >>> [message] = assert_enqueued("orders", contains={"order": 7}, count=1)
    >>> assert_enqueued(email_user, args=[7])
    """
    alias, name, task = _place(queue, using)
    if task is None and (args is not None or kwargs is not None):
        raise TypeError("args and kwargs need a task: pass the task in place of the queue's name")
    given = {
        "body__task": task,
        "body__args": args,
        "body__kwargs": kwargs,
        "headers__contains": headers,
        "priority": priority,
        "group_key": group,
    }
    lookups: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if contains is not _ANY:
        lookups["body__contains"] = contains
    messages = _messages(Queue.objects.resolve(name, alias), alias).filter(**lookups)
    found = [m for m in messages.order_by("pk") if body is _ANY or m.body == body]
    if len(found) != count if count is not None else not found:
        wanted = "a matching message" if count is None else f"{count} matching messages"
        raise AssertionError(
            f"expected {wanted} in queue {name!r}, found {len(found)}. {_contents(alias, name)}"
        )
    return found


def assert_not_enqueued(queue: Any, **which: Any) -> None:
    """Raise AssertionError if a message matches: :func:`assert_enqueued` with ``count=0``.

    >>> assert_not_enqueued("orders", contains={"order": 8})
    """
    if "count" in which:
        raise TypeError(
            "assert_not_enqueued() takes no count: it allows no matching message. For another "
            "number use assert_enqueued(..., count=...)"
        )
    assert_enqueued(queue, count=0, **which)


@contextmanager
def captured_messages(
    queue: str | None = None, *, handle: bool = False, using: str | None = None
) -> Iterator[list[Message]]:
    """Collect the messages that a block sends to one queue, or to all queues, in a list.

    Those that are sent to a subscription's source are the subscription's, too.

    The list is filled at the end of the block. With ``handle=True`` the messages are then handled,
    including messages that handlers send, until none is left. Django's
    ``captureOnCommitCallbacks(execute=True)`` does the same for callbacks.

    >>> with captured_messages("orders") as sent:
    ...     place_order(7)
    >>> [message.body for message in sent]
    [{'order': 7}]
    """
    alias = Queue.objects.database(using)
    last = _last_id(alias)
    captured: list[Message] = []
    yield captured
    if handle:
        _handle_all(queue, alias)
    sent = Message.objects.using(alias).filter(pk__gt=last).select_related("queue")
    if queue is None:
        sent = sent.filter(queue__source=None)  # without the copies of subscriptions
    else:
        found = Queue.objects.resolve(queue, alias)
        sent = sent.filter(queue=found.source_id or found.pk)
    captured.extend(sent.order_by("pk"))


def _handle_all(queue: str | None, alias: str) -> None:
    autodiscover()
    known = [h for h in handlers() if Queue.objects.database(h.using) == alias]
    existing = {q.name.lower() for q in Queue.objects.using(alias)}
    names = [h.queue for h in known if h.queue.lower() in existing] if queue is None else [queue]
    # Repeat, since a handler may send to a queue that was drained before.
    while any(drain(name, using=alias) for name in names):
        pass


def _place(queue: Any, using: str | None) -> tuple[str, str, str | None]:
    """Return the database alias, the queue's name, and the task's path or None."""
    if isinstance(queue, str):
        return Queue.objects.database(using), queue, None
    backend = getattr(queue.get_backend(), "database", None)
    if backend is None:
        raise TypeError(
            f"the backend of task {queue.name} sends no messages: configure "
            f"django_pgqueue.tasks.PgQueueBackend for this test"
        )
    return using or backend, queue.queue_name, queue.module_path


def _messages(queue: Queue, alias: str) -> models.QuerySet[Message]:
    """Return the messages that are in a queue, or that a subscription holds or has not read."""
    rows = Message.objects.using(alias)
    live = LiveMessage.objects.using(alias).filter(queue=queue)
    if queue.source_id is None:
        found: models.QuerySet[Message] = rows.filter(queue=queue, pk__in=live.values("pk"))
        return found
    own = rows.filter(queue=queue, pk__in=live.values("pk"))
    kept = set(own.values_list("pk", flat=True))
    held = set(live.values_list("pk", flat=True)) - kept
    unread = {each.id for each in peek_next(queue.opened, None, None)}
    of_source = models.Q(queue=queue.source_id, pk__in=held | unread)
    return rows.filter(of_source | models.Q(queue=queue, pk__in=kept))


def _contents(alias: str, name: str) -> str:
    found = Queue.objects.resolve(name, alias)
    shown = list(_messages(found, alias).order_by("pk")[: _SHOWN + 1])
    if not shown:
        return "The queue is empty."
    live = LiveMessage.objects.using(alias).filter(queue=found, pk__in=[each.pk for each in shown])
    states = dict(live.values_list("pk", "state"))
    lines = [
        f"  {each.pk} {states.get(each.pk, 'UNREAD')} priority={each.priority} "
        f"group={each.group_key!r} body={each.body!r} headers={each.headers!r}"
        for each in shown[:_SHOWN]
    ]
    more = ["  and more messages"] if len(shown) > _SHOWN else []
    return "\n".join(["The queue has:", *lines, *more])


def _last_id(alias: str) -> int:
    with connections[alias].cursor() as cursor:
        cursor.execute(
            "SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END "
            "FROM pgqueue_message_id_seq"
        )
        (last,) = cursor.fetchone()
    return int(last)
