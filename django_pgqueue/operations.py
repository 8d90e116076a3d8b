"""Migration operations for queues and topic bindings.

::

    class Migration(migrations.Migration):
        dependencies = [("django_pgqueue", "0006_subscriptions")]
        operations = [
            CreateQueue("orders.dead"),
            CreateQueue("orders", dead_letter_queue="orders.dead", max_deliveries=20),
            BindTopic("order.#", "orders"),
            Subscribe("audit", to="orders", start="earliest"),
        ]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.apps.registry import Apps
from django.db import connections, router, transaction
from django.db.migrations.exceptions import IrreversibleError
from django.db.migrations.graph import MigrationGraph
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations.base import Operation
from django.db.migrations.recorder import MigrationRecorder
from django.db.migrations.state import ModelState, ProjectState
from django.db.models import CASCADE

from django_pgqueue import pgmq
from django_pgqueue.database.runner import runner
from django_pgqueue.engine import arguments
from django_pgqueue.engine.subscriptions import positions
from django_pgqueue.engine.subscriptions.positions import NOW, Start
from django_pgqueue.engine.topics import topic_pattern
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.maintenance import sources, tables
from django_pgqueue.queues.decorators import takes
from django_pgqueue.tables import columns
from django_pgqueue.tables.queue import (
    ChangeableSettings,
    Queue,
    QueueSettings,
    SubscriptionSettings,
    change,
)

__all__ = [
    "AlterQueue",
    "BindTopic",
    "CreateQueue",
    "DropQueue",
    "InstallPGMQ",
    "Subscribe",
    "UnbindTopic",
]

if TYPE_CHECKING:
    from typing_extensions import Unpack


class DatabaseOperation(Operation):
    """The base class of operations, which change rows and tables, but no model state."""

    reduces_to_sql = False
    reversible = True

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Do nothing: queues are not part of the model state."""

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        database = _Database(schema_editor.connection, to_state.apps)
        if database.keeps_queues:
            self.forwards(database)

    def database_backwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        # In a reversal, to_state is the state before the migration, which may lack our models.
        database = _Database(schema_editor.connection, from_state.apps)
        if database.keeps_queues:
            self.backwards(database)

    def forwards(self, database: _Database) -> None:
        raise NotImplementedError

    def backwards(self, database: _Database) -> None:
        raise NotImplementedError


class QueueOperation(DatabaseOperation):
    """The base class of operations on one queue."""

    name: str
    #: The start of ``migration_name_fragment``.
    fragment: str

    @property
    def migration_name_fragment(self) -> str:
        return f"{self.fragment}_{''.join(c if c.isalnum() else '_' for c in self.name.lower())}"


class CreateQueue(QueueOperation):
    """Make a queue. Reversed, drops it with its messages.

    The settings are those of ``create_queue``. Durations are in seconds or a timedelta.
    ``dead_letter_queue`` names a queue that an earlier operation makes. If a queue with this name
    exists, it is not changed.

    ::

        CreateQueue("orders", visibility_timeout=60, retention=timedelta(days=30))

    Raises InvalidQueueName and InvalidArgument when the migration is loaded, and InvalidArgument
    when it runs if the dead-letter queue does not exist.
    """

    fragment = "queue"

    @takes(QueueSettings)
    def __init__(self, name: str, **settings: Unpack[QueueSettings]) -> None:
        self.settings: dict[str, Any] = dict(QueueSettings(**settings))
        self.name: str = arguments.queue_name(name)
        with _labelled(f"{type(self).__name__}({name!r})"):
            self._checked = columns.checked(Queue, self.settings)
            arguments.limits_together(self._checked)

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        return type(self).__name__, [self.name], self.settings

    def describe(self) -> str:
        return f"Create queue {self.name}"

    def forwards(self, database: _Database) -> None:
        if database.find(self.name) is None:
            database.create(self.name, self._checked)

    def backwards(self, database: _Database) -> None:
        queue = database.find(self.name)
        if queue is not None:
            database.drop(queue)


class AlterQueue(QueueOperation):
    """Change settings of a queue. Reversed, sets the values in ``before``.

    The settings are those of ``CreateQueue`` except for ``partition_interval``, which ``manage.py
    pgqueue_partition`` changes, and ``unlogged``. Other settings keep their values. Without
    ``before`` the operation cannot be reversed.

    ::

        AlterQueue("orders", max_deliveries=30, before={"max_deliveries": 20})

    Raises InvalidQueueName and InvalidArgument when the migration is loaded, and InvalidArgument
    when it runs if the queue does not exist, or if a new limit contradicts the queue's other
    limits.
    """

    fragment = "alter_queue"

    @takes(ChangeableSettings, defaults=False)
    def __init__(
        self,
        name: str,
        *,
        before: Mapping[str, Any] | None = None,
        **settings: Unpack[ChangeableSettings],
    ) -> None:
        self.settings: dict[str, Any] = dict(ChangeableSettings(**settings))
        self.name: str = arguments.queue_name(name)
        self.before = before
        label = f"AlterQueue({name!r})"
        if not self.settings:
            raise InvalidArgument(
                f"{label} changes nothing: pass a setting, such as max_deliveries=20"
            )
        if before is not None and not isinstance(before, Mapping):
            raise InvalidArgument(
                f"{label}: before must be a dict with the old values of the same settings, not "
                f"{before!r}"
            )
        if before is not None and before.keys() != self.settings.keys():
            raise InvalidArgument(
                f"{label}: before must have the old values of the same settings, "
                f"{', '.join(sorted(self.settings))}, not of {', '.join(sorted(before)) or 'none'}"
            )
        with _labelled(label):
            self._checked = _checked_changes(self.settings)
        with _labelled(f"{label} before"):
            self._checked_before = _checked_changes(before or {})
        self.reversible: bool = before is not None  # type: ignore[misc]

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        before = {} if self.before is None else {"before": dict(self.before)}
        return type(self).__name__, [self.name], {**before, **self.settings}

    def describe(self) -> str:
        return f"Change {', '.join(sorted(self.settings))} of queue {self.name}"

    def forwards(self, database: _Database) -> None:
        database.change(self.name, self._checked, self.describe())

    def backwards(self, database: _Database) -> None:
        if self.before is None:
            raise IrreversibleError(
                f"AlterQueue({self.name!r}) cannot be reversed without the old values. "
                f"Add before={{...}} with the same settings."
            )
        database.change(self.name, self._checked_before, self.describe())


class DropQueue(CreateQueue):
    """Drop a queue with its messages and its archive. Reversed, makes an empty queue.

    The settings are those of the queue that the reversal makes. Does nothing if the queue does not
    exist.

    ::

        DropQueue("orders", visibility_timeout=60)

    Raises InvalidQueueName and InvalidArgument when the migration is loaded, and InvalidArgument
    when it runs if the queue is the dead-letter queue of another queue, or has subscriptions.
    """

    fragment = "drop_queue"

    def describe(self) -> str:
        return f"Drop queue {self.name}"

    def forwards(self, database: _Database) -> None:
        super().backwards(database)

    def backwards(self, database: _Database) -> None:
        super().forwards(database)


class Subscribe(QueueOperation):
    """Make a subscription: a queue that reads the messages of another one. Reversed, drops it.

    ``start`` is that of ``queue(...).subscribe``: ``"now"``, ``"earliest"`` or an aware datetime.
    The settings are those of a subscription. Durations are in seconds or a timedelta. ``to`` and
    ``dead_letter_queue`` name queues that an earlier operation makes. If the subscription exists,
    it is not changed.

    ::

        Subscribe("audit", to="orders", start="earliest", max_deliveries=5)

    Raises InvalidQueueName and InvalidArgument when the migration is loaded, and InvalidArgument
    when it runs if ``to`` does not exist or is a subscription, or if the name is that of another
    queue.
    """

    fragment = "subscribe"

    @takes(SubscriptionSettings)
    def __init__(
        self,
        name: str,
        *,
        to: str,
        start: Start = NOW,
        **settings: Unpack[SubscriptionSettings],
    ) -> None:
        self.settings: dict[str, Any] = dict(SubscriptionSettings(**settings))
        self.name: str = arguments.queue_name(name)
        self.to: str = arguments.queue_name(to)
        self.start: Start = start
        with _labelled(f"Subscribe({name!r})"):
            positions.position_of(start, "start")
            self._checked = columns.checked(Queue, self.settings)
            arguments.limits_together(self._checked)

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        given = {"to": self.to, "start": self.start, **self.settings}
        return type(self).__name__, [self.name], given

    def describe(self) -> str:
        return f"Subscribe queue {self.name} to queue {self.to}"

    def forwards(self, database: _Database) -> None:
        database.subscribe(self.name, self.to, self.start, self._checked, self.describe())

    def backwards(self, database: _Database) -> None:
        queue = database.find(self.name)
        if queue is not None:
            database.drop(queue)


class BindTopic(QueueOperation):
    """Bind a topic pattern to a queue. Reversed, removes the binding.

    ::

        BindTopic("github.push.#", "builds")

    Raises InvalidQueueName and InvalidArgument when the migration is loaded, and InvalidArgument
    when it runs if the queue does not exist.
    """

    fragment = "bind"

    def __init__(self, pattern: str, queue: str) -> None:
        self.pattern: str = topic_pattern(pattern)
        self.name: str = arguments.queue_name(queue)

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        return type(self).__name__, [self.pattern, self.name], {}

    def describe(self) -> str:
        return f"Bind topic {self.pattern} to queue {self.name}"

    def forwards(self, database: _Database) -> None:
        queue = database.get(self.name, self.describe())
        database.bindings.get_or_create(pattern=self.pattern, queue_id=queue.pk)

    def backwards(self, database: _Database) -> None:
        queue = database.find(self.name)
        if queue is not None:
            database.bindings.filter(pattern=self.pattern, queue_id=queue.pk).delete()


class UnbindTopic(BindTopic):
    """Remove a binding. Reversed, makes the binding again.

    ::

        UnbindTopic("github.push.#", "builds")

    Raises the same exceptions as :class:`BindTopic`.
    """

    fragment = "unbind"

    def describe(self) -> str:
        return f"Unbind topic {self.pattern} from queue {self.name}"

    def forwards(self, database: _Database) -> None:
        super().backwards(database)

    def backwards(self, database: _Database) -> None:
        super().forwards(database)


# The migrations that create the tables of models.
_MIGRATIONS = {
    "Queue": "0001_initial",
    "Binding": "0002_topics_processes_maintenance",
    "Subscription": "0006_subscriptions",
}


class _Database:
    """Accesses the queues and bindings of a database, with the models of the migration's state."""

    def __init__(self, connection: Any, apps: Apps) -> None:
        self.connection: Any = connection
        self._apps = apps
        self.queue_model: Any = self._model("Queue")
        self._queues: Any = self.queue_model._base_manager.using(connection.alias)

    def _model(self, name: str) -> Any:
        try:
            return self._apps.get_model("django_pgqueue", name)
        except LookupError as error:
            raise InvalidArgument(_too_early(f"the table of {name} exists", name)) from error

    @property
    def keeps_queues(self) -> bool:
        """Whether the routers allow queues in this database."""
        model, alias = self.queue_model, self.connection.alias
        return bool(
            router.allow_migrate_model(alias, model) and model._meta.can_migrate(self.connection)
        )

    @property
    def bindings(self) -> Any:
        return self._model("Binding")._base_manager.using(self.connection.alias)

    def find(self, name: str) -> Any:
        return self._queues.filter(name__iexact=name).first()

    def get(self, name: str, purpose: str) -> Any:
        queue = self.find(name)
        if queue is None:
            known = ", ".join(self._queues.order_by("name").values_list("name", flat=True)[:20])
            raise InvalidArgument(
                f"{purpose}: there is no queue {name!r} in database {self.connection.alias!r}; "
                f"its queues: {known or 'none'}. Put CreateQueue({name!r}) before this operation, "
                f"or add the migration that makes the queue to dependencies"
            )
        return queue

    def create(self, name: str, settings: dict[str, Any], **source: Any) -> Any:
        """Make a queue. ``source`` is empty, or has the source of a subscription."""
        queue = self.queue_model(name=name, **self._with_target(name, settings), **source)
        with _labelled(f"queue {name!r}"):
            arguments.refuse_loop(queue, queue.dead_letter_queue_id, self._queues)
        queue.save(using=self.connection.alias, force_insert=True)
        with self.connection.cursor() as cursor:
            tables.create_tables(
                cursor,
                queue.pk,
                unlogged=queue.unlogged,
                partition_interval=queue.partition_interval,
                source_id=getattr(queue, "source_id", None),
            )
        return queue

    def need_subscriptions(self) -> None:
        """Raise InvalidArgument before the migration that makes subscriptions."""
        if not hasattr(self.queue_model, "source_id"):
            raise InvalidArgument(_too_early("subscriptions exist", "Subscription"))

    def subscribe(
        self, name: str, to: str, start: Start, settings: dict[str, Any], purpose: str
    ) -> None:
        self.need_subscriptions()
        source, found = self.get(to, purpose), self.find(name)
        with _labelled(purpose):
            sources.refuse(source, name)
            if found is None:
                queue = self.create(name, settings, source=source)
                positions.begin(runner(self.connection.alias), queue.pk, source.pk, start)
            elif found.source_id != source.pk:
                raise InvalidArgument(
                    f"queue {found.name!r} exists, and is "
                    + (
                        "no subscription"
                        if found.source is None
                        else f"a subscription to queue {found.source.name!r}"
                    )
                    + ". Drop it first with DropQueue, or choose another name"
                )

    def change(self, name: str, settings: dict[str, Any], purpose: str) -> None:
        queue = self.get(name, purpose)
        values = self._with_target(name, settings)
        with _labelled(purpose):
            change(queue, values, self._queues)

    def drop(self, queue: Any) -> None:
        sources = self._queues.filter(dead_letter_queue=queue).exclude(pk=queue.pk)
        names = ", ".join(sources.order_by("name").values_list("name", flat=True))
        if names:
            raise InvalidArgument(
                f"queue {queue.name!r} is the dead-letter queue of {names}: drop these queues "
                f"first, or change them with AlterQueue(..., dead_letter_queue=None)"
            )
        number = queue.pk
        source_id, readers = self._sources_of(number)
        if readers:
            raise InvalidArgument(
                f"queue {queue.name!r} has the subscriptions {', '.join(readers)}: drop these "
                f"queues first, with DropQueue"
            )
        # The migration's state may lack models of later migrations, whose tables exist.
        present = set(self.connection.introspection.table_names())
        for each in Queue._meta.related_objects:
            model: Any = each.related_model
            if each.on_delete is CASCADE and model._meta.db_table in present:
                model._base_manager.using(self.connection.alias).filter(queue=number).delete()
        queue.delete()
        with self.connection.cursor() as cursor:
            tables.drop_tables(cursor, number, name=queue.name, source_id=source_id)

    def _sources_of(self, number: int) -> tuple[int | None, list[str]]:
        """Return the id of a queue's source, and the names of the queue's subscriptions.

        The migration's state may lack the column, or the table.
        """
        with self.connection.cursor() as cursor:
            cursor.execute(
                "SELECT id, name, (to_jsonb(q) ->> 'source_id')::integer FROM pgqueue_queue q "
                "WHERE id = %s OR to_jsonb(q) ->> 'source_id' = %s::text ORDER BY name",
                [number, number],
            )
            rows = cursor.fetchall()
        source = next((source for pk, _name, source in rows if pk == number), None)
        return source, [name for pk, name, _source in rows if pk != number]

    def _with_target(self, name: str, settings: dict[str, Any]) -> dict[str, Any]:
        """Replace the dead-letter queue's name with its model instance."""
        if not (target := settings.get("dead_letter_queue")):
            return settings
        found = self.get(target, f"dead_letter_queue of queue {name!r}")
        return {**settings, "dead_letter_queue": found}


class InstallPGMQ(DatabaseOperation):
    """Install the schema ``pgmq``: PGMQ's SQL functions on these queues. Reversed, removes it.

    After an upgrade of this package, another InstallPGMQ replaces the functions. Reversed, that one
    removes the schema, too.

    ::

        operations = [InstallPGMQ()]

    Raises ForeignSchema when it runs if the database has another schema ``pgmq``.
    """

    migration_name_fragment: str = "install_pgmq"

    def describe(self) -> str:
        return "Install PGMQ's functions"

    def forwards(self, database: _Database) -> None:
        database.need_subscriptions()  # its functions refuse these
        with database.connection.cursor() as cursor:
            pgmq.install(cursor, database.queue_model)

    def backwards(self, database: _Database) -> None:
        with database.connection.cursor() as cursor:
            pgmq.remove(cursor)


def operations_in(graph: MigrationGraph) -> Iterator[tuple[tuple[str, str], QueueOperation]]:
    """Yield all queue operations, in the order of the migrations, with the migrations' keys."""
    plan = dict.fromkeys(key for leaf in graph.leaf_nodes() for key in graph.forwards_plan(leaf))
    for key in plan:
        migration = graph.nodes[key]
        for operation in migration.operations if migration else ():
            if isinstance(operation, QueueOperation):
                yield key, operation


def replay(alias: str, operations: Iterable[tuple[tuple[str, str], QueueOperation]]) -> None:
    """Run operations again in a database whose queues are gone, all or none."""
    state = _own_state()
    with transaction.atomic(using=alias), connections[alias].schema_editor(atomic=False) as editor:
        for (app_label, _), operation in operations:
            operation.database_forwards(app_label, editor, state, state)
    Queue.objects.forget_all()


def restore_queues(using: str, plan: Any = None, **kwargs: Any) -> None:
    """After a flush, make the queues and bindings of the applied migrations again.

    Receives ``post_migrate``, which has no ``plan`` after a flush. A ``migrate`` restores nothing,
    and nothing is done if one of these queues exists: those that are missing were dropped by hand.
    """
    connection = connections[using]
    if plan is not None or not _Database(connection, apps).keeps_queues:
        return
    with connection.cursor() as cursor:
        tables.restart_ids(cursor)
    applied = frozenset(MigrationRecorder(connection).applied_migrations())
    operations = _applied_operations(using, applied)
    names = {operation.name.lower() for _, operation in operations}
    stored = {name.lower() for name in Queue.objects.using(using).values_list("name", flat=True)}
    if names and not names & stored:
        replay(using, operations)


@cache
def _applied_operations(
    alias: str, applied: frozenset[tuple[str, str]]
) -> list[tuple[tuple[str, str], QueueOperation]]:
    loader = MigrationLoader(connections[alias])
    return [each for each in operations_in(loader.graph) if each[0] in loader.applied_migrations]


@cache
def _own_state() -> ProjectState:
    """The state of this package's models. A state of all models would take long to render."""
    state = ProjectState()
    for model in apps.get_app_config("django_pgqueue").get_models():
        state.add_model(ModelState.from_model(model))
    return state


def _checked_changes(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Validate settings, as far as that is possible without the queue."""
    checked = columns.checked(Queue, settings)
    # The queue may have the rate that a new burst needs.
    arguments.limits_together({"rate": "of the queue", "group_rate": "of the queue", **checked})
    return checked


def _too_early(what: str, needs: str) -> str:
    """Return the error of a migration that lacks a dependency."""
    return (
        f"this migration runs before {what}: add "
        f'("django_pgqueue", "{_MIGRATIONS[needs]}") to its dependencies'
    )


@contextmanager
def _labelled(label: str) -> Iterator[None]:
    """Put the label before the message of an InvalidArgument."""
    try:
        yield
    except InvalidArgument as error:
        raise InvalidArgument(f"{label}: {error}") from error
