"""Topic bindings: they determine the queues that get a copy of a published message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar

from django.db import connections, models, transaction
from django.utils.translation import gettext_lazy

from django_pgqueue.database.runner import database_key
from django_pgqueue.engine.open_queue import OpenQueue
from django_pgqueue.engine.topics import PATTERN, Router, routing_key, topic_pattern
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.tables import columns
from django_pgqueue.tables.queue import Queue
from django_pgqueue.validators import validate_topic_pattern

#: The header that holds the routing key of a published message.
ROUTING_KEY = "x-routing-key"

P = ParamSpec("P")
R = TypeVar("R")


class Binding(models.Model):
    """A topic pattern, and the queue that gets the messages published with a matching key."""

    id: columns.BigAutoKey = models.BigAutoField(primary_key=True)
    pattern: columns.Char = models.CharField(
        max_length=255,
        validators=[validate_topic_pattern],
        help_text="Words separated by dots. * matches one word, # any number of words.",
    )
    queue: models.ForeignKey[Queue, Queue] = models.ForeignKey(
        Queue, models.CASCADE, related_name="bindings"
    )
    bound_at: columns.Time = models.DateTimeField(db_default=columns.NOW, editable=False)

    class Meta(columns.Meta):
        verbose_name: ClassVar[Any] = gettext_lazy("topic binding")
        verbose_name_plural: ClassVar[Any] = gettext_lazy("topic bindings")
        # Without "change": route() notices only bindings that were added or deleted.
        default_permissions: ClassVar[tuple[str, ...]] = ("add", "delete", "view")
        db_table = "pgqueue_binding"
        ordering: ClassVar[tuple[str, ...]] = ("pattern", "queue")
        constraints: ClassVar[tuple[models.BaseConstraint, ...]] = (
            models.UniqueConstraint(fields=("pattern", "queue"), name="pgqueue_binding_unique"),
            *columns.matching("pgqueue_binding", PATTERN, "pattern"),
        )

    def __str__(self) -> str:
        return self.pattern

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Save the binding. Raises InvalidArgument for a pattern that ``bind`` refuses."""
        topic_pattern(self.pattern)
        super().save(*args, **kwargs)


# The cached bindings of each database: their fingerprint, the router, and the queues by pattern.
_routes: dict[tuple[str, str], tuple[Any, Router, dict[str, list[Queue]]]] = {}


def send_to_each(
    alias: str,
    key: str,
    send: Callable[Concatenate[OpenQueue, P], R],
    *args: P.args,
    **kwargs: P.kwargs,
) -> dict[str, R]:
    """Call ``send`` for each queue bound to the key, in one transaction.

    A subscription gets the message through its source. Returns the results by queue name.
    """
    bound = [_as_it_is_now(queue) for queue, _patterns in route(alias, key)]
    queues = list(dict.fromkeys(queue.source or queue for queue in bound))
    if not queues:
        return {}
    with transaction.atomic(using=queues[0].alias):
        return {queue.name: send(queue.opened, *args, **kwargs) for queue in queues}


def route(alias: str, key: str) -> list[tuple[Queue, list[str]]]:
    """Return the queues bound to a key, in the order of their names, with the matching patterns."""
    key = routing_key(key)
    place = database_key(alias)
    bindings = Binding.objects.using(alias)
    # The fingerprint changes when a binding is added or removed, since ids are never reused.
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
    """Return the queue with its current settings: a cached binding may hold outdated ones."""
    found = Queue.objects.resolve(queue.name, queue.alias)
    # The cache may still have a dropped queue of this name, with another id.
    return found if found.pk == queue.pk else queue


def with_key(headers: Any, key: str) -> dict[str, Any]:
    if headers is not None and not isinstance(headers, dict):
        raise InvalidArgument(f"headers must be a dict or None, not {headers!r}")
    return {ROUTING_KEY: key, **(headers or {})}
