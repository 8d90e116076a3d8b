"""Topic bindings: messages are published with a key, and bound queues get copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

from django.db import connections, models, transaction

from django_pgqueue.engine.queue import OpenQueue
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.models import announcing, columns
from django_pgqueue.models.queue import Queue
from django_pgqueue.runner import database_key
from django_pgqueue.topics import Router, routing_key, topic_pattern
from django_pgqueue.types import Delay
from django_pgqueue.validators import validate_topic_pattern

__all__ = [
    "ROUTING_KEY",
    "Binding",
    "bind",
    "list_bindings",
    "publish",
    "publish_batch",
    "test_routing",
    "unbind",
]

#: The header with the key that a message was published with.
ROUTING_KEY = "x-routing-key"

R = TypeVar("R")


class Binding(models.Model):
    """A topic pattern bound to a queue, which gets the messages published with a matching key."""

    id: columns.BigAutoKey = models.BigAutoField(primary_key=True)
    pattern: columns.Char = models.CharField(
        max_length=255,
        validators=[validate_topic_pattern],
        help_text="Words joined by dots; * stands for one word, # for any number of them.",
    )
    queue: models.ForeignKey[Queue, Queue] = models.ForeignKey(
        Queue, models.CASCADE, related_name="bindings"
    )
    bound_at: columns.Time = models.DateTimeField(db_default=columns.NOW, editable=False)

    class Meta(columns.Meta):
        db_table = "pgqueue_binding"
        ordering: ClassVar[tuple[str, ...]] = ("pattern", "queue")
        constraints: ClassVar[tuple[models.BaseConstraint, ...]] = (
            models.UniqueConstraint(fields=("pattern", "queue"), name="pgqueue_binding_unique"),
        )

    def __str__(self) -> str:
        return self.pattern


# A cache of bindings by database: their fingerprint, the router, and the queues by pattern.
_routes: dict[tuple[str, str], tuple[Any, Router, dict[str, list[Queue]]]] = {}


def bind(alias: str, pattern: str, queue: str | Queue) -> bool:
    """Bind a pattern to a queue: it gets a copy of each message published with a matching key.

    In a pattern ``*`` is one word of a key and ``#`` any number of words. Takes effect at the next
    publish, in every process. Returns False if the binding exists.

    >>> Message.objects.bind("github.push.#", "builds")
    True

    Raises QueueNotFound, InvalidArgument.
    """
    pattern = topic_pattern(pattern)
    found = Queue.objects.resolve(queue, alias)
    _, created = Binding.objects.using(found.alias).get_or_create(
        pattern=pattern, queue_id=found.pk
    )
    return created


def unbind(alias: str, pattern: str, queue: str | Queue) -> bool:
    """Remove a binding. Returns False if there is none.

    >>> Message.objects.unbind("github.push.#", "builds")
    True

    Raises QueueNotFound, InvalidArgument.
    """
    pattern = topic_pattern(pattern)
    found = Queue.objects.resolve(queue, alias)
    bindings = Binding.objects.using(found.alias)
    deleted, _ = bindings.filter(pattern=pattern, queue_id=found.pk).delete()
    return deleted > 0


def list_bindings(alias: str, queue: str | Queue | None = None) -> list[Binding]:
    """All bindings, or those of one queue, ordered by pattern.

    >>> [(b.pattern, b.queue.name) for b in Message.objects.list_bindings()]
    [('github.push.#', 'builds')]

    Raises QueueNotFound.
    """
    bindings = Binding.objects.using(alias).select_related("queue")
    if queue is not None:
        found = Queue.objects.resolve(queue, alias)
        bindings = bindings.using(found.alias).filter(queue_id=found.pk)
    return list(bindings.order_by("pattern", "queue__name"))


def test_routing(alias: str, key: str) -> dict[str, list[str]]:
    """The names of the queues that would get a key, each with the matching patterns.

    >>> Message.objects.test_routing("github.push.main")
    {'builds': ['github.push.#']}

    Raises InvalidArgument.
    """
    routed: dict[str, list[str]] = {}
    for queue, patterns in _route(alias, key):
        routed[queue.name] = sorted(patterns)
    return routed


def publish(
    alias: str,
    key: str,
    body: Any,
    *,
    headers: dict[str, Any] | None = None,
    delay: Delay | None = 0,
    priority: int = 0,
    group: str | None = None,
    dedup_key: str | None = None,
) -> dict[str, int]:
    """Send one copy to each queue that is bound to the key. Returns the ids by queue name.

    Sends all copies or none, in the caller's transaction if there is one. A queue gets one copy
    even if several of its patterns match. If none match, nothing is sent. The header
    ``x-routing-key`` carries the key.

    Arguments:
        key: words of ``A-Z a-z 0-9 _ -`` joined by dots.
        body, headers, delay, priority, group, dedup_key: as for ``send``, for each copy.

    >>> Message.objects.publish("github.push.main", {"commits": 3})
    {'builds': 7}

    Raises InvalidArgument, InvalidMessage.
    """
    headers = _with_key(headers, key)
    return _to_each(
        alias,
        key,
        lambda queue: announcing.send(
            queue,
            body,
            headers=headers,
            delay=delay,
            priority=priority,
            group=group,
            dedup_key=dedup_key,
        ),
    )


def publish_batch(
    alias: str,
    key: str,
    bodies: Sequence[Any],
    *,
    headers: Sequence[dict[str, Any] | None] | dict[str, Any] | None = None,
    delay: Delay | None = 0,
    priority: int = 0,
    group: Sequence[str | None] | str | None = None,
    dedup_key: Sequence[str | None] | None = None,
) -> dict[str, list[int]]:
    """Publish several messages with one key. Returns lists of ids by queue name.

    The arguments are those of ``send_batch``.

    >>> Message.objects.publish_batch("github.push.main", [{"commits": 3}, {"commits": 1}])
    {'builds': [8, 9]}

    Raises InvalidArgument, InvalidMessage.
    """
    if headers is None or isinstance(headers, dict):
        with_key: Any = _with_key(headers, key)
    else:
        with_key = [_with_key(each, key) for each in headers]
    return _to_each(
        alias,
        key,
        lambda queue: announcing.send_batch(
            queue,
            bodies,
            headers=with_key,
            delay=delay,
            priority=priority,
            group=group,
            dedup_key=dedup_key,
        ),
    )


def _to_each(alias: str, key: str, send: Callable[[OpenQueue], R]) -> dict[str, R]:
    """Call ``send`` for each queue bound to the key, all or none. Returns results by name."""
    queues = [_as_it_is_now(queue) for queue, _patterns in _route(alias, key)]
    if not queues:
        return {}
    with transaction.atomic(using=queues[0].alias):
        return {queue.name: send(queue.opened) for queue in queues}


def _route(alias: str, key: str) -> list[tuple[Queue, list[str]]]:
    """The queues bound to a key, by name, each with the matching patterns."""
    key = routing_key(key)
    place = database_key(alias)
    bindings = Binding.objects.using(alias)
    # The fingerprint. Ids are never reused, so number, last id and sum change with the bindings.
    now = bindings.aggregate(
        number=models.Count("pk"), last=models.Max("pk"), total=models.Sum("pk")
    )
    known = _routes.get(place)
    if known is None or known[0] != now:
        queues: dict[str, list[Queue]] = {}
        for binding in bindings.select_related("queue").order_by("queue__name"):
            queues.setdefault(binding.pattern, []).append(binding.queue)
        known = now, Router(queues), queues
        if not connections[alias].in_atomic_block:
            _routes[place] = known
    _, router, queues = known
    routed: dict[str, tuple[Queue, list[str]]] = {}
    for pattern in router.match(key):
        for queue in queues[pattern]:
            routed.setdefault(queue.name, (queue, []))[1].append(pattern)
    return [routed[name] for name in sorted(routed)]


def _as_it_is_now(queue: Queue) -> Queue:
    """The queue with its current settings: bindings are cached longer than settings."""
    found = Queue.objects.resolve(queue.name, queue.alias)
    # The name may be cached for a dropped queue, which had another id.
    return found if found.pk == queue.pk else queue


def _with_key(headers: Any, key: str) -> dict[str, Any]:
    if headers is not None and not isinstance(headers, dict):
        raise InvalidArgument(f"headers must be a dict or None, not {headers!r}")
    return {ROUTING_KEY: key, **(headers or {})}
