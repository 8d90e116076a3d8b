"""Queues as part of a project's migrations."""

from __future__ import annotations

from typing import Any

from django.apps.registry import Apps
from django.db import router
from django.db.migrations.operations.base import Operation

from django_pgqueue import arguments
from django_pgqueue.maintenance import tables

__all__ = ["CreateQueue"]


class CreateQueue(Operation):
    """A migration operation that makes a queue; backwards it drops the queue with its messages.

    ``settings`` are fields of :class:`~django_pgqueue.models.Queue`; ``dead_letter_queue`` is the
    name of a queue that exists by then. A queue of that name that exists already stays as it is.

    ::

        class Migration(migrations.Migration):
            dependencies = [("django_pgqueue", "0001_initial")]
            operations = [CreateQueue("orders", visibility_timeout=60)]

    Raises InvalidQueueName.
    """

    reduces_to_sql = False
    reversible = True

    def __init__(self, name: str, **settings: Any) -> None:
        self.name = arguments.queue_name(name)
        self.settings = settings

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        return type(self).__name__, [self.name], self.settings

    def describe(self) -> str:
        return f"Create queue {self.name}"

    def state_forwards(self, app_label: str, state: Any) -> None:
        """The state of models knows nothing of queues."""

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        queues = self._queues(schema_editor, to_state.apps)
        if queues is None or queues.filter(name__iexact=self.name).exists():
            return
        settings = dict(self.settings)
        if target := settings.pop("dead_letter_queue", None):
            settings["dead_letter_queue"] = queues.get(name__iexact=target)
        queue = queues.create(name=self.name, **settings)
        with schema_editor.connection.cursor() as cursor:
            tables.create_tables(
                cursor,
                queue.pk,
                unlogged=queue.unlogged,
                partition_interval=queue.partition_interval,
            )

    def database_backwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        queues = self._queues(schema_editor, from_state.apps)
        queue = queues.filter(name__iexact=self.name).first() if queues is not None else None
        if queue is None:
            return
        number = queue.pk
        queue.delete()
        with schema_editor.connection.cursor() as cursor:
            tables.drop_tables(cursor, number, name=queue.name, unlogged=queue.unlogged)

    @staticmethod
    def _queues(schema_editor: Any, apps: Apps) -> Any:
        """The queues as this point of the migrations knows them, where they are kept at all."""
        model = apps.get_model("django_pgqueue", "Queue")
        alias = schema_editor.connection.alias
        connection = schema_editor.connection
        if not (router.allow_migrate_model(alias, model) and model._meta.can_migrate(connection)):
            return None
        return model._base_manager.using(alias)
