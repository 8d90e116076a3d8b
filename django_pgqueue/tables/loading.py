"""What ``loaddata`` does with messages and outcomes of subscriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import models

from django_pgqueue.tables.queue import Queue

if TYPE_CHECKING:
    _Model = models.Model
else:
    _Model = object


class OncePerQueue(_Model):
    """A row that is one of several with the same primary key: a message's, in different queues.

    ``loaddata`` leaves out a subscription's own rows, since a subscription begins anew where it is
    loaded. It writes the others, without a change to a subscription's row with the same key.
    """

    queue: Any
    queue_id: Any

    # No public method that loaddata calls could skip a row, so this overrides a private one.
    def _save_table(
        self,
        raw: bool = False,
        cls: Any = None,
        force_insert: Any = False,
        force_update: bool = False,
        using: str | None = None,
        update_fields: Any = None,
    ) -> bool:
        if raw:
            if is_of_subscription(self, using):
                return False
            rows = type(self)._base_manager.using(using).filter(pk=self.pk)
            queues = set(rows.values_list("queue_id", flat=True))
            if queues - {self.queue_id}:
                if self.queue_id in queues:
                    return False  # an UPDATE would change them all; messages do not change
                force_insert = True
        saved: bool = super()._save_table(  # type: ignore[misc]
            raw, cls, force_insert, force_update, using, update_fields
        )
        return saved


def is_of_subscription(instance: Any, using: str | None) -> bool:
    """Whether the row belongs to a subscription."""
    rows = Queue.objects.using(using).filter(pk=instance.queue_id)
    return rows.exclude(source=None).exists()
