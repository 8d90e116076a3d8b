"""The model of queues. Saving a new queue makes its tables, deleting it drops them."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Mapping
from functools import partial
from itertools import repeat
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypedDict, cast

from django.db import (
    DatabaseError,
    IntegrityError,
    ProgrammingError,
    connections,
    models,
    transaction,
)
from django.db.models.functions import Lower
from django.utils.functional import cached_property
from django.utils.translation import gettext_lazy

from django_pgqueue import errors, pgmq
from django_pgqueue.conf import settings
from django_pgqueue.database import locks
from django_pgqueue.database.acting import operating, tell_actor
from django_pgqueue.database.home import HomeManager
from django_pgqueue.database.runner import database_key, runner
from django_pgqueue.engine import arguments
from django_pgqueue.engine.names import own_tables, table_names
from django_pgqueue.engine.open_queue import STORED, OpenQueue, clear_lost
from django_pgqueue.engine.runner import READ_COMMITTED
from django_pgqueue.engine.sqlstates import (
    LOCK_NOT_AVAILABLE,
    READ_ONLY,
    UNDEFINED_TABLE,
    is_gone,
    sqlstate,
)
from django_pgqueue.engine.subscriptions import positions
from django_pgqueue.errors import InvalidArgument, QueueBusy, QueueMismatch, QueueNotFound
from django_pgqueue.maintenance import sources, tables
from django_pgqueue.tables import columns
from django_pgqueue.types import Lag
from django_pgqueue.validators import validate, validate_queue_name

if TYPE_CHECKING:
    # Type checkers show the keys of a TypedDict as arguments; jedi does so only for a dataclass.
    from dataclasses import dataclass as shown
else:

    def shown(cls: type) -> type:
        return cls


_TABLE = "pgqueue_queue"

_MOST_REMEMBERED = 10_000

#: The default of ``age_limit``: how long a message may be readable without an alert.
_AGE_LIMIT = dt.timedelta(minutes=5)

# Seconds that a try to drop waits for its locks; seconds before the next try, so that other
# sessions can proceed.
_TRY = (0.1, 0.05)


_SOURCE = {"source", "source_id"}
_FIXED_SOURCE = (
    "a subscription's source cannot change, because its position belongs to the source: drop the "
    "subscription, and make it again with subscribe()"
)


class QueueQuerySet(models.QuerySet["Queue"]):
    """A queryset of queues. Its ``delete`` drops their tables too."""

    def named(self, name: str) -> QueueQuerySet:
        """Filter for the queue with this name, ignoring case."""
        return self.alias(lower_name=Lower("name")).filter(
            lower_name=arguments.queue_name(name).lower()
        )

    def bulk_create(self, *args: Any, **kwargs: Any) -> list[Queue]:
        """Refuse: the queues would have no tables."""
        raise InvalidArgument(
            "bulk_create() makes no tables: make the queues one by one, with create_queue()"
        )

    def update(self, **kwargs: Any) -> int:
        """Update the rows. Refuses the settings that are fixed when a queue's tables are made."""
        if kwargs.keys() & _SOURCE:
            raise InvalidArgument(_FIXED_SOURCE)
        for name in sorted(FIXED & kwargs.keys()):
            raise InvalidArgument(
                f"update() cannot change {name}, because it does not change the queue's tables. "
                f"{FIXED_ADVICE[name]}"
            )
        self._for_write = True
        with operating(self.db):
            return super().update(**kwargs)

    def delete(self) -> tuple[int, dict[str, int]]:
        """Drop the queues one by one, because each drop locks tables of its own.

        Subscriptions go before their sources.
        """
        dropped = sum(
            queue.delete()[0] for queue in sorted(self, key=lambda q: q.source_id is None)
        )
        return dropped, {self.model._meta.label: dropped}


class QueueManager(HomeManager["Queue"]):
    """Finds queues, and caches them for a few seconds.

    Only committed queues are cached, so that a rollback leaves no stale entry.
    """

    #: The cache of each database: its queues by lower-case name, and when they expire.
    _remembered: dict[tuple[str, str], tuple[dict[str, Queue], float]] = {}

    _queryset_class = QueueQuerySet

    def get_queryset(self) -> QueueQuerySet:
        return cast("QueueQuerySet", super().get_queryset())

    def using(self, alias: str | None) -> QueueQuerySet:
        """Return a queryset of the queues in another database."""
        return self.get_queryset().using(alias or self.database())

    def get_by_natural_key(self, name: str) -> Queue:
        """Return the queue with this name, for ``loaddata``."""
        return self.get_queryset().named(name).get()

    def resolve(self, queue: str | Queue, using: str | None = None) -> Queue:
        """Return the queue with this name, from the cache unless it has expired.

        A Queue is returned as it is, unless ``using`` is another database: then its name is looked
        up in that database.

        Raises QueueNotFound, TablesMissing, UnusableDatabase, and InvalidQueueName before any
        query.
        """
        if isinstance(queue, Queue):
            if queue._state.adding:
                raise InvalidArgument(f"queue {queue.name!r} is not saved yet: save() it first")
            if using is None or using == queue.alias:
                return queue
            queue = queue.name
        alias = self.database(using)
        cached, until = self._remembered.get(database_key(alias), ({}, 0.0))
        queues = cached if time.monotonic() < until else None
        # Look up the name as given, unchecked: cached names are valid, and most are in lower case.
        if found := queues.get(queue) if queues and isinstance(queue, str) else None:
            return found
        name = arguments.queue_name(queue)
        if found := (queues or {}).get(name.lower()):
            return found
        try:
            found = self._ask(name, alias, queues)
        except DatabaseError as error:
            raise explained(error, alias) from error.__cause__
        if found is None:
            raise QueueNotFound(name, alias)
        return found

    def _ask(self, name: str, alias: str, fresh: dict[str, Queue] | None) -> Queue | None:
        """Query the queue with this name. Outside transactions, also store it in the cache.

        ``fresh`` has the cached queues; None: they have expired, so all queues are read.
        """
        autocommit = connections[alias].get_autocommit()
        named = self.using(alias).named(name)
        if fresh is not None or not autocommit:
            found = list(named)
        else:
            # Read all queues: even with a thousand, that costs little more than reading one.
            found = list(self.using(alias)[:_MOST_REMEMBERED])
            fresh = {}
            until = time.monotonic() + settings.CACHE_SECONDS
            self._remembered[database_key(alias)] = fresh, until
            if len(found) == _MOST_REMEMBERED:
                found += named
        by_name = {queue.name.lower(): queue for queue in found}
        if autocommit and fresh is not None:
            fresh.update(by_name)
        if any(queue.unlogged for queue in found):
            clear_lost(runner(alias))
        return by_name.get(name.lower())

    def finish_drops(self, alias: str, seconds: float) -> None:
        """Delete the queues that clients of schema ``pgmq`` have dropped.

        Raises QueueBusy if a queue's tables stay locked for longer than ``seconds``.
        """
        with connections[alias].cursor() as cursor:
            dropped = pgmq.dropped(cursor)
        for queue in self.using(alias).filter(pk__in=dropped) if dropped else ():
            queue.drop_within(seconds, alias)

    def forget(self, name: str, alias: str) -> None:
        """Remove a queue from the cache."""
        queues, _ = self._remembered.get(database_key(alias), ({}, 0.0))
        queues.pop(name.lower(), None)

    def forget_unlogged(self, connection: Any, **kwargs: Any) -> None:
        """Remove unlogged queues from the cache. Called for each new connection.

        The server may have crashed and emptied their tables. The next look-up of such a queue
        deletes the rows that the lost messages left in other tables.
        """
        key = connection.alias, str(connection.settings_dict["NAME"])
        queues, _ = self._remembered.get(key, ({}, 0.0))
        for name, queue in list(queues.items()):
            if queue.unlogged:
                queues.pop(name, None)

    def forget_all(self) -> None:
        """Clear the cache, for tests that change the database of an alias."""
        self._remembered.clear()


Length: TypeAlias = dt.timedelta | float


@shown
class CommonSettings(TypedDict, total=False):
    """The types of the settings that queues and subscriptions have."""

    visibility_timeout: int | dt.timedelta
    max_deliveries: int
    dead_letter_queue: str | Queue | None
    retention: Length | None
    limit: int | None
    rate: str | None
    burst: int | None
    age_limit: Length | None
    paused: bool
    notify: bool


@shown
class SubscriptionSettings(CommonSettings, total=False):
    """The types of the settings of a subscription."""

    keep_for: Length | None
    archive_completed: bool


@shown
class KeyedSettings(CommonSettings, total=False):
    """The types of the settings of a queue with unique keys and groups: all but a subscription."""

    unique_window: Length | None
    group_limit: int | None
    group_rate: str | None
    group_burst: int | None


@shown
class ChangeableSettings(SubscriptionSettings, KeyedSettings, total=False):
    """The types of the settings of a queue that may change."""


@shown
class QueueSettings(KeyedSettings, total=False):
    """The types of the settings with which a queue is made."""

    partition_interval: Length | None
    unlogged: bool


@columns.with_checks
class Queue(models.Model):
    """One queue and its settings.

    Saving a new queue makes its tables. Deleting it drops them with all messages. Both are part of
    the caller's transaction.
    """

    id: columns.AutoKey = models.AutoField(primary_key=True)
    name: columns.Char = models.CharField(
        max_length=63,
        validators=[validate_queue_name],
        help_text="1 to 63 of these characters: A-Z a-z 0-9 _ . - (unique, ignoring case).",
    )
    visibility_timeout: columns.PositiveInteger = columns.count(
        30,
        "Seconds for which a message that was read is hidden from other readers.",
        columns.SECONDS,
    )
    max_deliveries: columns.PositiveInteger = columns.count(
        20, "Maximum number of deliveries of a message. Then it is dead-lettered."
    )
    dead_letter_queue: models.ForeignKey[Queue | None, Queue | None] = columns.setting(
        columns.QUEUE,
        models.ForeignKey(
            "self",
            models.PROTECT,
            null=True,
            blank=True,
            related_name="sources",
            help_text=(
                "The queue for messages without deliveries left. "
                "Empty: they are archived as FAILED."
            ),
        ),
    )
    retention: columns.DurationOrNull = columns.span(
        "How long to keep archived messages. Empty: forever."
    )
    partition_interval: columns.DurationOrNull = columns.span(
        "The time span of a partition. Empty: a single partition.", editable=False
    )
    unique_window: columns.DurationOrNull = columns.span(
        "How long a message holds its unique key. Empty: five minutes."
    )
    limit: columns.IntegerOrNull = columns.slots(
        "Maximum number of messages in flight. Empty: no limit."
    )
    rate: columns.CharOrNull = columns.rate(
        "Maximum number of deliveries in a time, such as 100/s or 30/m. Empty: no limit."
    )
    burst: columns.IntegerOrNull = columns.slots(
        "Maximum number of deliveries at once after a pause. Empty: one."
    )
    group_limit: columns.IntegerOrNull = columns.slots(
        "Maximum number of messages of a group in flight. Empty: one, in order."
    )
    group_rate: columns.CharOrNull = columns.rate(
        "Maximum number of deliveries of a group in a time, such as 30/m. Empty: no limit."
    )
    group_burst: columns.IntegerOrNull = columns.slots(
        "Maximum number of deliveries of a group at once after a pause. Empty: one."
    )
    has_slots: columns.Boolean = models.BooleanField(
        default=False,
        editable=False,
        help_text="Whether groups have, or had, a limit, a rate or settings of their own.",
    )
    age_limit: columns.DurationOrNull = columns.span(
        "How long a message may be readable before there is an alert. Empty: five minutes."
    )
    source: models.ForeignKey[Queue | None, Queue | None] = models.ForeignKey(
        "self",
        models.PROTECT,
        null=True,
        editable=False,
        related_name="subscriptions",
        help_text="The queue whose messages this one reads, if it is a subscription.",
    )
    keep_for: columns.DurationOrNull = columns.span(
        "How long the source keeps messages that this subscription has not read. "
        "Empty: as long as needed."
    )
    archive_completed: columns.Boolean = columns.flag(
        False,
        "Whether a subscription archives a copy of each message that it has completed.",
        is_late=True,
    )
    unlogged: columns.Boolean = columns.flag(
        False, "Faster, but a crash of the server empties the queue.", editable=False
    )
    paused: columns.Boolean = columns.flag(False, "Consumers read no messages of this queue.")
    notify: columns.Boolean = columns.flag(True, "A send wakes waiting consumers.")
    created_at: columns.Time = models.DateTimeField(db_default=columns.NOW, editable=False)

    #: Where a new subscription begins (:func:`django_pgqueue.engine.subscriptions.positions.seek`).
    start: positions.Start = positions.NOW

    objects: ClassVar[QueueManager] = QueueManager()

    class Meta:
        verbose_name: ClassVar[Any] = gettext_lazy("queue")
        verbose_name_plural: ClassVar[Any] = gettext_lazy("queues")
        permissions: ClassVar[tuple[tuple[str, str], ...]] = (
            ("pause_queue", "Can pause and resume queues"),
            ("purge_queue", "Can purge queues"),
            ("seek_queue", "Can move subscriptions"),
        )
        db_table = _TABLE
        base_manager_name = "objects"
        ordering: ClassVar[tuple[str, ...]] = ("name",)
        required_db_vendor = "postgresql"
        constraints: ClassVar[tuple[models.BaseConstraint, ...]] = (
            models.UniqueConstraint(Lower("name"), name="pgqueue_queue_name_unique"),
            *columns.matching(_TABLE, arguments.NAME, "name"),
            columns.given_with(_TABLE, "burst", "rate"),
            columns.given_with(_TABLE, "group_burst", "group_rate"),
            columns.given_without(_TABLE, "group_burst", "group_limit"),
            columns.given_with(_TABLE, "keep_for", "source"),
            columns.Check(
                condition=models.Q(archive_completed=False) | models.Q(source__isnull=False),
                name=f"{_TABLE}_archive_completed_needs_source",
            ),
            columns.Check(
                condition=models.Q(source__isnull=True)
                | models.Q(
                    *(
                        (f"{name}__isnull", True)
                        for name in arguments.NOT_OF_SUBSCRIPTIONS
                        if name != "unlogged"
                    ),
                    unlogged=False,
                ),
                name=f"{_TABLE}_source",
            ),
            columns.Check(
                condition=~models.Q(dead_letter_queue=models.F("id")),
                name=f"{_TABLE}_dead_letter_queue",
            ),
        )

    def __str__(self) -> str:
        return self.name

    def natural_key(self) -> tuple[str]:
        """Return the name, with which ``dumpdata --natural-foreign`` refers to the queue."""
        return (self.name,)

    @property
    def longest_wait(self) -> float:
        """Seconds for which a message may be readable before there is an alert."""
        return (self.age_limit or _AGE_LIMIT).total_seconds()

    def lag(self, limit: int | None = None) -> Lag | None:
        """Return how far this subscription is behind, as ``queue(...).lag`` does."""
        return positions.lag(self.opened, limit)

    @property
    def alias(self) -> str:
        """The alias of the database that has this queue, or to which it will be saved."""
        return self._state.db or type(self).objects.database()

    @cached_property
    def opened(self) -> OpenQueue:
        """This queue as the engine's OpenQueue, with the stored settings."""
        alias = self.alias
        return OpenQueue(
            **{name: getattr(self, name) for name in STORED},
            runner=runner(alias),
            find=partial(_opened, alias),
            source=self,
        )

    @cached_property
    def tables(self) -> dict[str, Any]:
        """The names of this queue's tables, to be filled into queries."""
        return table_names(self.pk)

    def reread(self) -> Queue:
        """Return the queue with its stored settings, for work that takes several transactions.

        Raises QueueNotFound if the queue was dropped, and RuntimeError inside a transaction.
        """
        manager = type(self).objects
        # durable=True raises RuntimeError inside a transaction.
        with transaction.atomic(using=self.alias, durable=True):
            found = manager.using(self.alias).filter(pk=self.pk).first()
        if found is None:
            manager.forget(self.name, self.alias)
            raise QueueNotFound(self.name, self.alias)
        return found

    def clean(self) -> None:
        validate(arguments.limits_together, self._limits())
        validate(arguments.subscribed, self._given(), self.source_id)
        queues = type(self).objects.using(self.alias)
        validate(arguments.refuse_loop, self, self.dead_letter_queue_id, queues)

    def save(self, *args: Any, using: str | None = None, **kwargs: Any) -> None:
        arguments.queue_name(self.name)
        for name, value in columns.checked(Queue, self._given()).items():
            setattr(self, name, value)
        arguments.limits_together(self._limits())
        arguments.subscribed(self._given(), self.source_id)
        alias = using or self.alias
        arguments.refuse_loop(self, self.dead_letter_queue_id, type(self).objects.using(alias))
        self.__dict__.pop("opened", None)
        is_new = self._state.adding
        if not is_new and _SOURCE.intersection(kwargs.get("update_fields") or ()):
            raise InvalidArgument(_FIXED_SOURCE)
        if is_new and self.source is not None:
            sources.refuse(self.source, self.name)
        if not is_new and kwargs.get("update_fields") is None:
            # Omit fixed settings: this object may have values from before a repartition.
            fixed = {"id", "has_slots", "source", *FIXED}
            kwargs["update_fields"] = {
                field.name
                for field in self._meta.concrete_fields
                if field.name not in fixed and field.attname not in self.get_deferred_fields()
            }
        with operating(alias):
            super().save(*args, using=alias, **kwargs)
            if is_new:
                self.make_tables(alias)
            if self.group_limit or self.group_rate:
                self.refresh_from_db(using=alias, fields=["has_slots"])  # a trigger sets it
        type(self).objects.forget(self.name, self.alias)

    def make_tables(self, alias: str) -> None:
        """Make the queue's own tables, in the caller's transaction."""
        with connections[alias].cursor() as cursor:
            tables.create_tables(
                cursor,
                self.pk,
                unlogged=self.unlogged,
                partition_interval=self.partition_interval,
                source_id=self.source_id,
            )
        if self.source_id is not None:
            positions.begin(runner(alias), self.pk, self.source_id, self.start)

    def _given(self) -> dict[str, Any]:
        """Return the settings that are values: not deferred, and no expressions such as F()."""
        names = SETTINGS.keys() - {"dead_letter_queue"} - self.get_deferred_fields()
        found = {name: getattr(self, name) for name in names}
        return {k: v for k, v in found.items() if not hasattr(v, "resolve_expression")}

    def _limits(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in arguments.LIMITS}

    def delete(
        self, using: str | None = None, keep_parents: bool = False
    ) -> tuple[int, dict[str, int]]:
        """Drop the queue with its messages and its archive.

        This needs exclusive locks on the queue's tables. Each try waits only briefly for them,
        because other sessions wait behind it. Tries are repeated for up to ``LOCK_SECONDS``.

        Raises QueueBusy if no try gets the locks; then nothing is changed.
        """
        return self.drop_within(settings.LOCK_SECONDS, using or self.alias)

    def drop_within(self, seconds: float, alias: str) -> tuple[int, dict[str, int]]:
        """Do the same as :meth:`delete`, but repeat the tries for up to ``seconds``."""
        drop = partial(self._drop, alias)
        deleted = locks.briefly(drop, repeat(_TRY), self.name, seconds)
        type(self).objects.forget(self.name, self.alias)
        return deleted

    def _drop(self, alias: str, stall: float) -> tuple[int, dict[str, int]]:
        pk = self.pk
        is_alone = connections[alias].get_autocommit()
        with (
            transaction.atomic(using=alias),
            connections[alias].cursor() as cursor,
            locks.read_committed(cursor, is_alone),
            locks.settings_for(cursor, lock_timeout=locks.milliseconds(stall)),
        ):
            tell_actor(cursor)
            locks.keep_vacuum_off(cursor, own_tables(pk))
            self.bulk_actions.model.objects.abandon(self, using=alias)
            deleted = super().delete(using=alias)
            self.pk = pk  # super().delete() cleared pk, but a retry needs it
            tables.drop_tables(cursor, pk, name=self.name, source_id=self.source_id)
        return deleted

    @classmethod
    def create(
        cls, name: str, using: str, asked: Mapping[str, Any] = MappingProxyType({})
    ) -> tuple[Queue, dict[str, Any] | None]:
        """Get or make a queue. Concurrent calls are safe.

        Returns the queue, and None if it was made; if it existed, those settings that it has with
        another value.
        """
        given = _checked(asked, using)
        defaults = {"name": arguments.queue_name(name), **given}
        queue, made = cls.objects.using(using).get_or_create(defaults, name__iexact=name)
        if made:
            return queue, None
        differs = {key: value for key, value in given.items() if getattr(queue, key) != value}
        if differs.get("partition_interval", ...) is None:
            del differs["partition_interval"]  # None: any interval
        for key in sorted(FIXED & differs.keys()):
            raise QueueMismatch(queue.name, key, getattr(queue, key), differs[key])
        return queue, differs

    @classmethod
    def subscribe(
        cls,
        name: str,
        to: str | Queue,
        start: positions.Start,
        using: str,
        asked: Mapping[str, Any] = MappingProxyType({}),
    ) -> tuple[Queue, dict[str, Any] | None]:
        """Get or make a subscription to the queue ``to``. Returns what :meth:`create` returns.

        Outside a transaction, each try waits only briefly for the locks on the source's tables, and
        a big source gets its index without blocking its senders.
        """
        source = cls.objects.resolve(to, using)
        given = {"source": source, **_checked(asked, using)}
        positions.position_of(start, "start")
        sources.refuse(source, name)
        rows = cls.objects.using(using)
        found = rows.named(name).first()
        if found is None:
            make = partial(cls._subscribe, arguments.queue_name(name), given, start, using)
            try:
                if not connections[using].get_autocommit():
                    return make(None), None
                with connections[using].cursor() as cursor:
                    sources.index(cursor, source.pk, settings.LOCK_SECONDS)
                return locks.briefly(make, repeat(_TRY), source.name, settings.LOCK_SECONDS), None
            except DatabaseError as error:
                if sqlstate(error) == LOCK_NOT_AVAILABLE:
                    raise QueueBusy(source.name, settings.LOCK_SECONDS) from error
                if not isinstance(error, IntegrityError):
                    raise
                # Another session made a queue of this name meanwhile.
                found = rows.named(name).first()
                if found is None:
                    raise
        if found.source_id != source.pk:
            raise QueueMismatch(
                found.name, "source", found.source and found.source.name, source.name
            )
        return found, {key: value for key, value in given.items() if getattr(found, key) != value}

    @classmethod
    def _subscribe(
        cls,
        name: str,
        given: Mapping[str, Any],
        start: positions.Start,
        using: str,
        stall: float | None,
    ) -> Queue:
        with transaction.atomic(using=using), connections[using].cursor() as cursor:
            if stall is not None:
                cursor.execute(READ_COMMITTED)
                locks.set_locally(cursor, lock_timeout=locks.milliseconds(stall))
            queue = cls(name=name, **given)
            queue.start = start
            queue.save(using=using)
        return queue

    @classmethod
    def alter(cls, name: str, using: str, asked: Mapping[str, Any]) -> tuple[Queue, dict[str, Any]]:
        """Change settings of a queue. Returns it, and the old values of what changed."""
        if not asked:
            raise InvalidArgument(
                f"queue {name!r}: pass a setting to change, such as max_deliveries=20"
            )
        given = _checked(asked, using)
        rows = cls.objects.using(using)
        with transaction.atomic(using=using):
            # The lock of an UPDATE, so that the checks hold until then.
            queue = rows.select_for_update(no_key=True).named(name).first()
            if queue is None:
                raise QueueNotFound(name, using)
            before = {key: getattr(queue, key) for key in given}
            change(queue, given, rows)
        queue.refresh_from_db(using=using)
        cls.objects.forget(queue.name, using)
        return queue, {key: value for key, value in before.items() if value != given[key]}


#: The columns that are settings of a queue, by name.
SETTINGS: dict[str, models.Field[Any, Any]] = columns.settings_of(Queue)
#: The settings that concern a queue's tables, and how to change them.
FIXED_ADVICE = {
    "partition_interval": "Call queue(...).repartition(), or run manage.py pgqueue_partition.",
    "unlogged": "Drop the queue, and create it again.",
}
FIXED = FIXED_ADVICE.keys()


def _checked(given: Mapping[str, Any], using: str) -> dict[str, Any]:
    """Validate settings. The name of a dead-letter queue becomes that queue.

    Raises InvalidArgument, and QueueNotFound for the dead-letter queue.
    """
    target = given.get("dead_letter_queue")
    if target is None:
        return columns.checked(Queue, given)
    checked = columns.checked(Queue, {**given, "dead_letter_queue": None})
    return {**checked, "dead_letter_queue": Queue.objects.resolve(target, using)}


def as_arguments(settings_: Mapping[str, Any]) -> str:
    """Write settings as arguments of a call, such as ``limit=5, retention=3600``."""
    return ", ".join(f"{name}={plain(value)!r}" for name, value in settings_.items())


def plain(value: Any) -> Any:
    """Return a setting's value as a number, text or boolean; None stays None."""
    if isinstance(value, dt.timedelta):
        seconds = value.total_seconds()
        return int(seconds) if seconds.is_integer() else seconds
    return value.name if isinstance(value, Queue) else value


def change(queue: Any, settings_: Mapping[str, Any], rows: Any) -> None:
    """Change settings of a stored queue. ``rows`` is a queryset of all queues in its database.

    The models are this one or a migration's. The settings are checked, but not against the queue:
    raises InvalidArgument if they contradict its other limits, or if dead letters would come back.
    """
    if settings_.keys() & arguments.LIMITS:
        stored = {name: getattr(queue, name) for name in arguments.LIMITS}
        arguments.limits_together({**stored, **settings_})
    arguments.subscribed(settings_, getattr(queue, "source_id", None))
    if target := settings_.get("dead_letter_queue"):
        arguments.refuse_loop(queue, target.pk, rows)
    rows.filter(pk=queue.pk).update(**settings_)


class TablesMissing(errors.TablesMissing, ProgrammingError):
    """TablesMissing that is also a ProgrammingError, for code that catches Django's errors."""


class UnusableDatabase(errors.UnusableDatabase, DatabaseError):
    """UnusableDatabase that is also a DatabaseError, for code that catches Django's errors."""


def explained(error: DatabaseError, alias: str) -> DatabaseError:
    """Return an error that says what to do, if that is known; otherwise the same error."""
    connection = connections[alias]
    if isinstance(error, errors.PgQueueError):
        return error
    if connection.vendor != "postgresql":
        return UnusableDatabase(
            f"Database {alias!r} is {connection.display_name}, but queues are in PostgreSQL. Set "
            f"DATABASES[{alias!r}]['ENGINE'] to 'django.db.backends.postgresql'. Or add a second "
            f"database for the queues, and name it in PGQUEUE['DATABASE']"
        )
    state = sqlstate(error)
    if state == READ_ONLY:
        return UnusableDatabase(
            f"Database {alias!r} takes no writes: {str(error).strip()}. Sends, reads and acks "
            f"write. If the server is a standby, connect to the primary "
            f"(DATABASES[{alias!r}]['OPTIONS']['target_session_attrs'] = 'read-write' finds it). "
            f"If not, default_transaction_read_only is on, for the role or the database"
        )
    return TablesMissing(error, alias) if state == UNDEFINED_TABLE else error


def _opened(alias: str, name: str) -> OpenQueue:
    return Queue.objects.resolve(name, alias).opened


def reopened(opened: OpenQueue, error: DatabaseError) -> OpenQueue:
    """Return the queue that replaced a dropped one of the same name.

    Raises ``error`` if the queue was not dropped, with its remedy (:func:`explained`). Raises
    QueueNotFound if there is no new queue, or inside a transaction.
    """
    if not is_gone(error):
        raise explained(error, opened.alias) from error.__cause__
    Queue.objects.forget(opened.name, opened.alias)
    if not connections[opened.alias].get_autocommit():
        raise QueueNotFound(opened.name, opened.alias) from error
    return Queue.objects.resolve(opened.name, opened.alias).opened
