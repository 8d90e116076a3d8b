"""Queues and topic bindings as part of a project's migrations.

::

    class Migration(migrations.Migration):
        dependencies = [("django_pgqueue", "0002_topics_processes_maintenance")]
        operations = [
            CreateQueue("orders.dead"),
            CreateQueue("orders", dead_letter_queue="orders.dead", max_deliveries=20),
            BindTopic("order.#", "orders"),
        ]
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from django.apps.registry import Apps
from django.db import router
from django.db.migrations.exceptions import IrreversibleError
from django.db.migrations.graph import MigrationGraph
from django.db.migrations.operations.base import Operation

from django_pgqueue import arguments
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.maintenance import tables
from django_pgqueue.topics import topic_pattern

__all__ = [
    "AlterQueue",
    "BindTopic",
    "CreateQueue",
    "DropQueue",
    "QueueOperation",
    "UnbindTopic",
    "operations_in",
]

Duration = dt.timedelta | float

_UNSET: Any = object()
#: Storage is fixed when a queue is made; manage.py pgqueue_partition converts one.
_STORAGE = ("partition_interval", "unlogged")
_CHANGEABLE = (
    "visibility_timeout",
    "max_deliveries",
    "dead_letter_queue",
    "retention",
    "dedup_window",
    "age_limit",
    "paused",
    "notify",
)


class QueueOperation(Operation):
    """The base of the operations: they change rows and tables of queues, and no model's state."""

    reduces_to_sql = False
    reversible = True
    name: str

    def state_forwards(self, app_label: str, state: Any) -> None:
        """The state of models knows nothing of queues."""

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        if _keeps_queues(schema_editor, to_state.apps):
            self.forwards(_Database(schema_editor, to_state.apps))

    def database_backwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        # Backwards to_state is what was before: an app added since is only in from_state.
        if _keeps_queues(schema_editor, from_state.apps):
            self.backwards(_Database(schema_editor, from_state.apps))

    def forwards(self, database: _Database) -> None:
        raise NotImplementedError

    def backwards(self, database: _Database) -> None:
        raise NotImplementedError


class CreateQueue(QueueOperation):
    """Make a queue; backwards it is dropped with its messages.

    ``settings`` are those of ``create_queue``, and ``paused``; durations are in seconds or a
    timedelta. ``dead_letter_queue`` is the name of a queue that exists by then. A queue of that
    name that exists already stays as it is.

    ::

        CreateQueue("orders", visibility_timeout=60, retention=timedelta(days=30))

    Raises InvalidQueueName and InvalidArgument when the migration is loaded, and InvalidArgument
    when it runs and the dead-letter queue does not exist.
    """

    # Each setting by its name: squashmigrations writes down those of the signature only.
    def __init__(
        self,
        name: str,
        *,
        visibility_timeout: int = _UNSET,
        max_deliveries: int = _UNSET,
        dead_letter_queue: str | None = _UNSET,
        retention: Duration | None = _UNSET,
        partition_interval: Duration | None = _UNSET,
        dedup_window: Duration | None = _UNSET,
        age_limit: Duration | None = _UNSET,
        unlogged: bool = _UNSET,
        paused: bool = _UNSET,
        notify: bool = _UNSET,
        **unknown: Any,
    ) -> None:
        self.name: str = arguments.queue_name(name)
        self.settings: dict[str, Any] = _given(
            visibility_timeout=visibility_timeout,
            max_deliveries=max_deliveries,
            dead_letter_queue=dead_letter_queue,
            retention=retention,
            partition_interval=partition_interval,
            dedup_window=dedup_window,
            age_limit=age_limit,
            unlogged=unlogged,
            paused=paused,
            notify=notify,
            **unknown,
        )
        label = f"{type(self).__name__}({name!r})"
        self._checked = _checked(self.settings, (*_CHANGEABLE, *_STORAGE), label)

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        return type(self).__name__, [self.name], self.settings

    def describe(self) -> str:
        return f"Create queue {self.name}"

    @property
    def migration_name_fragment(self) -> str:
        return f"queue_{_fragment(self.name)}"

    def forwards(self, database: _Database) -> None:
        if database.find(self.name) is None:
            database.create(self.name, self._checked)

    def backwards(self, database: _Database) -> None:
        queue = database.find(self.name)
        if queue is not None:
            database.drop(queue)


class AlterQueue(QueueOperation):
    """Change settings of a queue; backwards they get the values in ``before``.

    ``settings`` are those of ``CreateQueue`` without ``partition_interval`` and ``unlogged``, which
    are storage: see ``manage.py pgqueue_partition``. Settings that are not named stay. Without
    ``before`` the operation cannot be reversed.

    ::

        AlterQueue("orders", max_deliveries=30, before={"max_deliveries": 20})

    Raises InvalidQueueName and InvalidArgument when the migration is loaded, and InvalidArgument
    when it runs and there is no such queue.
    """

    def __init__(
        self,
        name: str,
        *,
        before: Mapping[str, Any] | None = None,
        visibility_timeout: int = _UNSET,
        max_deliveries: int = _UNSET,
        dead_letter_queue: str | None = _UNSET,
        retention: Duration | None = _UNSET,
        dedup_window: Duration | None = _UNSET,
        age_limit: Duration | None = _UNSET,
        paused: bool = _UNSET,
        notify: bool = _UNSET,
        **unknown: Any,
    ) -> None:
        self.name: str = arguments.queue_name(name)
        self.before = before
        self.settings: dict[str, Any] = _given(
            visibility_timeout=visibility_timeout,
            max_deliveries=max_deliveries,
            dead_letter_queue=dead_letter_queue,
            retention=retention,
            dedup_window=dedup_window,
            age_limit=age_limit,
            paused=paused,
            notify=notify,
            **unknown,
        )
        label = f"AlterQueue({name!r})"
        settings = self.settings
        if not settings:
            raise InvalidArgument(f"{label} changes nothing: name a setting, as max_deliveries=20")
        self._checked = _checked(settings, _CHANGEABLE, label)
        self._checked_before = _checked(before or {}, _CHANGEABLE, f"{label} before")
        if before is not None and before.keys() != settings.keys():
            raise InvalidArgument(
                f"{label}: before must name the same settings as are changed "
                f"({', '.join(sorted(settings))}), not {', '.join(sorted(before)) or 'none'}"
            )
        self.reversible: bool = before is not None  # type: ignore[misc]

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        before = {} if self.before is None else {"before": dict(self.before)}
        return type(self).__name__, [self.name], {**before, **self.settings}

    def describe(self) -> str:
        return f"Change {', '.join(sorted(self.settings))} of queue {self.name}"

    @property
    def migration_name_fragment(self) -> str:
        return f"alter_queue_{_fragment(self.name)}"

    def forwards(self, database: _Database) -> None:
        database.change(self.name, self._checked, self.describe())

    def backwards(self, database: _Database) -> None:
        if self.before is None:
            raise IrreversibleError(
                f"AlterQueue({self.name!r}) does not say what was before. "
                f"Add before={{...}} with the same settings."
            )
        database.change(self.name, self._checked_before, self.describe())


class DropQueue(CreateQueue):
    """Drop a queue with its messages and its archive; backwards an empty one is made.

    ``settings`` are those of the queue, for the way backwards. A queue that does not exist is
    nothing to drop.

    ::

        DropQueue("orders", visibility_timeout=60)

    Raises InvalidQueueName and InvalidArgument when the migration is loaded, and InvalidArgument
    when it runs and the queue takes the dead letters of another.
    """

    def describe(self) -> str:
        return f"Drop queue {self.name}"

    @property
    def migration_name_fragment(self) -> str:
        return f"drop_queue_{_fragment(self.name)}"

    def forwards(self, database: _Database) -> None:
        super().backwards(database)

    def backwards(self, database: _Database) -> None:
        super().forwards(database)


class BindTopic(QueueOperation):
    """Bind a topic pattern to a queue; backwards the binding is taken back.

    ::

        BindTopic("github.push.#", "builds")

    Raises InvalidQueueName and InvalidArgument when the migration is loaded, and InvalidArgument
    when it runs and there is no such queue.
    """

    def __init__(self, pattern: str, queue: str) -> None:
        self.pattern: str = topic_pattern(pattern)
        self.name: str = arguments.queue_name(queue)

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        return type(self).__name__, [self.pattern, self.name], {}

    def describe(self) -> str:
        return f"Bind topic {self.pattern} to queue {self.name}"

    @property
    def migration_name_fragment(self) -> str:
        return f"bind_{_fragment(self.name)}"

    def forwards(self, database: _Database) -> None:
        queue = database.get(self.name, self.describe())
        database.bindings.get_or_create(pattern=self.pattern, queue_id=queue.pk)

    def backwards(self, database: _Database) -> None:
        queue = database.find(self.name)
        if queue is not None:
            database.bindings.filter(pattern=self.pattern, queue_id=queue.pk).delete()


class UnbindTopic(BindTopic):
    """Take a binding back; backwards it is made again.

    ::

        UnbindTopic("github.push.#", "builds")

    Raises what :class:`BindTopic` raises.
    """

    def describe(self) -> str:
        return f"Unbind topic {self.pattern} from queue {self.name}"

    @property
    def migration_name_fragment(self) -> str:
        return f"unbind_{_fragment(self.name)}"

    def forwards(self, database: _Database) -> None:
        super().backwards(database)

    def backwards(self, database: _Database) -> None:
        super().forwards(database)


class _Database:
    """The queues and bindings of one database, as this point of the migrations knows them."""

    def __init__(self, schema_editor: Any, apps: Apps) -> None:
        self._connection = schema_editor.connection
        self._apps = apps
        self._queues = apps.get_model("django_pgqueue", "Queue")._base_manager.using(
            self._connection.alias
        )

    @property
    def bindings(self) -> Any:
        try:
            model = self._apps.get_model("django_pgqueue", "Binding")
        except LookupError as error:
            raise InvalidArgument(
                "the table of topic bindings comes later than this migration: add the latest "
                "migration of django_pgqueue to its dependencies (manage.py showmigrations "
                "django_pgqueue)"
            ) from error
        return model._base_manager.using(self._connection.alias)

    def find(self, name: str) -> Any:
        return self._queues.filter(name__iexact=name).first()

    def get(self, name: str, purpose: str) -> Any:
        queue = self.find(name)
        if queue is None:
            known = ", ".join(self._queues.order_by("name").values_list("name", flat=True)[:20])
            raise InvalidArgument(
                f"{purpose}: there is no queue {name!r} in database {self._connection.alias!r}; "
                f"those there are: {known or 'none'}. Put CreateQueue({name!r}) before it, or name "
                f"the migration that makes the queue in dependencies"
            )
        return queue

    def create(self, name: str, settings: dict[str, Any]) -> None:
        queue = self._queues.create(name=name, **self._with_target(name, settings))
        with self._connection.cursor() as cursor:
            tables.create_tables(
                cursor,
                queue.pk,
                unlogged=queue.unlogged,
                partition_interval=queue.partition_interval,
            )

    def change(self, name: str, settings: dict[str, Any], purpose: str) -> None:
        queue = self.get(name, purpose)
        self._queues.filter(pk=queue.pk).update(**self._with_target(name, settings))

    def drop(self, queue: Any) -> None:
        sources = self._queues.filter(dead_letter_queue=queue).exclude(pk=queue.pk)
        names = ", ".join(sources.order_by("name").values_list("name", flat=True))
        if names:
            raise InvalidArgument(
                f"queue {queue.name!r} takes the dead letters of {names}: drop these first, or "
                f"give them another with AlterQueue(..., dead_letter_queue=None)"
            )
        number = queue.pk
        queue.delete()
        with self._connection.cursor() as cursor:
            tables.drop_tables(cursor, number, name=queue.name, unlogged=queue.unlogged)

    def _with_target(self, name: str, settings: dict[str, Any]) -> dict[str, Any]:
        settings = dict(settings)
        if target := settings.get("dead_letter_queue"):
            found = self.get(target, f"dead_letter_queue of queue {name!r}")
            self._refuse_loop(name, found)
            settings["dead_letter_queue"] = found
        return settings

    def _refuse_loop(self, name: str, target: Any) -> None:
        passed = [name]
        while target is not None:
            passed.append(target.name)
            if target.name.lower() == name.lower():
                raise InvalidArgument(
                    f"dead letters would go round: {' -> '.join(passed)}. Leave one of these "
                    f"queues without a dead_letter_queue"
                )
            target = target.dead_letter_queue


def operations_in(graph: MigrationGraph) -> Iterator[tuple[tuple[str, str], QueueOperation]]:
    """The operations on queues in migrations, in their order, each with its app and migration."""
    plan = dict.fromkeys(key for leaf in graph.leaf_nodes() for key in graph.forwards_plan(leaf))
    for key in plan:
        migration = graph.nodes[key]
        for operation in migration.operations if migration else ():
            if isinstance(operation, QueueOperation):
                yield key, operation


def _keeps_queues(schema_editor: Any, apps: Apps) -> bool:
    """Whether the database is one that the routers keep queues in."""
    connection = schema_editor.connection
    try:
        model = apps.get_model("django_pgqueue", "Queue")
    except LookupError as error:
        raise InvalidArgument(
            "the tables of queues come later than this migration: add "
            '("django_pgqueue", "0001_initial") to its dependencies'
        ) from error
    return bool(
        router.allow_migrate_model(connection.alias, model) and model._meta.can_migrate(connection)
    )


def _given(**settings: Any) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not _UNSET}


def _checked(settings: Mapping[str, Any], known: tuple[str, ...], label: str) -> dict[str, Any]:
    """The settings in the form that the model takes. Raises InvalidArgument."""
    checked = {}
    for name, value in settings.items():
        if name not in known:
            close = get_close_matches(name, known, n=1)
            advice = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
            if name in _STORAGE:
                advice = "storage is converted with manage.py pgqueue_partition, or made anew"
            raise InvalidArgument(f"{label} has no setting {name!r}: {advice}")
        try:
            checked[name] = _CHECKS[name](name, value)
        except InvalidArgument as error:
            raise InvalidArgument(f"{label}: {error}") from error
    return checked


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidArgument(f"{name} must be True or False, not {value!r}")
    return value


def _queue_or_none(name: str, value: object) -> str | None:
    try:
        return None if value is None else arguments.queue_name(value)
    except InvalidArgument as error:
        raise InvalidArgument(f"{name} must be the name of a queue or None: {error}") from error


_CHECKS: dict[str, Any] = {
    "visibility_timeout": lambda name, value: arguments.count(value, name),
    "max_deliveries": lambda name, value: arguments.count(value, name),
    "dead_letter_queue": _queue_or_none,
    "retention": lambda name, value: arguments.span(value, name),
    "partition_interval": lambda name, value: arguments.span(value, name),
    "dedup_window": lambda name, value: arguments.span(value, name),
    "age_limit": lambda name, value: arguments.span(value, name),
    "unlogged": _flag,
    "paused": _flag,
    "notify": _flag,
}


def _fragment(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name.lower())
