"""Settings of single groups, where they differ from their queue's."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from django_pgqueue.models import columns
from django_pgqueue.models.queue import Queue

__all__ = ["GroupSetting"]


class GroupSetting(models.Model):
    """The limit, the rate and the pause of one group. A trigger applies changes at once."""

    id: columns.BigAutoKey = models.BigAutoField(primary_key=True)
    queue: models.ForeignKey[Queue, Queue] = models.ForeignKey(
        Queue, models.CASCADE, related_name="group_settings"
    )
    group_key: columns.Text = models.TextField()
    limit: columns.IntegerOrNull = columns.slots(
        "The most messages of this group in flight at once; empty: as the queue says."
    )
    rate: columns.CharOrNull = columns.rate(
        "The most deliveries of this group in a time; empty: as the queue says."
    )
    burst: columns.IntegerOrNull = columns.slots(
        "How many this rate delivers at once after a pause; empty: one."
    )
    paused: columns.Boolean = models.BooleanField(
        default=False, help_text="No message of this group is delivered."
    )

    class Meta(columns.Meta):
        verbose_name = "group's settings"
        verbose_name_plural = "groups' settings"
        db_table = "pgqueue_group_setting"
        ordering: ClassVar[tuple[str, ...]] = ("queue", "group_key")
        constraints: ClassVar[tuple[models.BaseConstraint, ...]] = (
            models.UniqueConstraint(
                fields=("queue", "group_key"), name="pgqueue_group_setting_unique"
            ),
        )

    def __str__(self) -> str:
        return f"{self.group_key} in {self.queue}"
