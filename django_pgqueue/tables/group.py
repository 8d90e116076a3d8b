"""The model of the settings that single groups have."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models

from django_pgqueue.database.acting import operating
from django_pgqueue.engine import arguments
from django_pgqueue.tables import columns
from django_pgqueue.tables.queue import Queue
from django_pgqueue.validators import validate

_TABLE = "pgqueue_group_setting"


@columns.with_checks
class GroupSetting(models.Model):
    """The limit, the rate and the pause of one group. A trigger applies changes at once."""

    id: columns.BigAutoKey = models.BigAutoField(primary_key=True)
    queue: models.ForeignKey[Queue, Queue] = models.ForeignKey(
        Queue, models.CASCADE, related_name="group_settings"
    )
    group_key: columns.Text = models.TextField()
    limit: columns.IntegerOrNull = columns.slots(
        "Maximum number of messages of this group in flight. Empty: the queue's group limit."
    )
    rate: columns.CharOrNull = columns.rate(
        "Maximum number of deliveries of this group in a time. Empty: the queue's group rate."
    )
    burst: columns.IntegerOrNull = columns.slots(
        "Maximum number of deliveries of this group at once after a pause. Empty: one."
    )
    paused: columns.Boolean = models.BooleanField(
        default=False, help_text="Consumers read no messages of this group."
    )

    class Meta(columns.Meta):
        verbose_name = "group's settings"
        verbose_name_plural = "groups' settings"
        db_table = _TABLE
        ordering: ClassVar[tuple[str, ...]] = ("queue", "group_key")
        indexes: ClassVar[tuple[models.Index, ...]] = (
            models.Index(
                fields=["queue", "group_key"],
                condition=models.Q(paused=True),
                name="pgqueue_group_setting_paused",
            ),
        )
        constraints: ClassVar[tuple[models.BaseConstraint, ...]] = (
            models.UniqueConstraint(
                fields=("queue", "group_key"), name="pgqueue_group_setting_unique"
            ),
            *columns.matching(_TABLE, f".{{1,{arguments.LONGEST_KEY}}}", "group_key"),
            columns.given_with(_TABLE, "burst", "rate"),
            columns.given_without(_TABLE, "burst", "limit"),
        )

    def __str__(self) -> str:
        return f"{self.group_key} in {self.queue}"

    def clean(self) -> None:
        validate(self._check)

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Save the settings. Raises InvalidArgument as the methods of ``BoundGroup`` do."""
        self._check()
        with operating(kwargs.get("using") or self.queue.alias):
            super().save(*args, **kwargs)

    def _check(self) -> None:
        arguments.group(self.group_key)
        given = {"limit": self.limit, "rate": self.rate, "burst": self.burst}
        columns.checked(type(self), given)
        arguments.limits_together(given)
        arguments.limits_together({f"group_{name}": value for name, value in given.items()})
