"""Settings of one group: ``queue("mails").group("customer 12").limit(50)``."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import ProgrammingError, models, transaction

from django_pgqueue import arguments
from django_pgqueue.errors import InvalidArgument, QueueNotFound
from django_pgqueue.models import columns
from django_pgqueue.models.queue import Queue, explained
from django_pgqueue.models.twins import twin_of
from django_pgqueue.validators import validate

_TABLE = "pgqueue_group_setting"


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
        constraints: ClassVar[tuple[models.BaseConstraint, ...]] = (
            models.UniqueConstraint(
                fields=("queue", "group_key"), name="pgqueue_group_setting_unique"
            ),
            *columns.matching(_TABLE, f".{{1,{arguments.LONGEST_KEY}}}", "group_key"),
            *columns.within(_TABLE, columns.SLOTS, "limit", "burst"),
            *columns.matching(_TABLE, arguments.RATE, "rate"),
            columns.given_with(_TABLE, "burst", "rate"),
            columns.given_without(_TABLE, "burst", "limit"),
        )

    def __str__(self) -> str:
        return f"{self.group_key} in {self.queue}"

    def clean(self) -> None:
        validate(self._check)

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Save the settings. Raises InvalidArgument as the methods of :class:`BoundGroup` do."""
        self._check()
        super().save(*args, **kwargs)

    def _check(self) -> None:
        arguments.group(self.group_key)
        given = {"limit": self.limit, "rate": self.rate, "burst": self.burst}
        arguments.settings(given)
        arguments.limits_together(given)
        arguments.limits_together({f"group_{name}": value for name, value in given.items()})


class BoundGroup:
    """One group of a queue, with methods that give it settings other than the queue's.

    Settings take effect in all processes at once, and last until :meth:`reset`. Each method runs in
    the caller's transaction, and raises QueueNotFound if the queue does not exist.

    >>> customer = queue("mails").group("customer 12")
    >>> customer.limit(50)
    >>> customer.pause()
    """

    def __init__(self, queue: str, key: str, *, using: str | None = None) -> None:
        self.queue = queue
        self.key: str = arguments.group(key)
        self.using = using

    def __repr__(self) -> str:
        using = f", using={self.using!r}" if self.using else ""
        return f"queue({self.queue!r}{using}).group({self.key!r})"

    def limit(self, limit: int | None) -> None:
        """Set how many messages of the group may be in flight at once, over all processes.

        With a limit above one, the group's messages start in any order. The limit is also the burst
        of the group's rate, and replaces a burst that was set with :meth:`rate`.

        Arguments:
            limit: 1 to 10,000; None: the queue's ``group_limit``.

        Raises InvalidArgument.
        """
        arguments.slots(limit, "limit")
        self._change(
            self._find(), {"limit": limit} if limit is None else {"limit": limit, "burst": None}
        )

    @twin_of(limit)
    def alimit(self) -> None: ...

    def rate(self, rate: str | None, *, burst: int | None = None) -> None:
        """Set how many messages of the group may start in a time.

        Arguments:
            rate: messages in a second, minute, hour or day, such as ``"10/s"`` or ``"30/m"``; None:
                the queue's ``group_rate``.
            burst: how many may start at once after a pause, 1 to 10,000; None: one, or as many as
                the group's limit.

        >>> queue("mails").group("customer 12").rate("10/s", burst=2)

        Raises InvalidArgument for a burst if the group has a limit, and for a rate if the queue has
        no ``group_rate``.
        """
        arguments.rate(rate, "rate")
        arguments.slots(burst, "burst")
        queue = self._find()
        if rate is not None and queue.group_rate is None:
            raise InvalidArgument(
                f"queue {queue.name!r} has no group_rate, so none of its groups can have a rate. "
                f"Give the queue a group_rate that no group reaches, such as "
                f'AlterQueue({queue.name!r}, group_rate="10000/s"). The messages of its groups '
                f"then start in any order"
            )
        own = self._rows(queue).first()
        limit = queue.group_limit if own is None or own.limit is None else own.limit
        arguments.limits_together({"group_limit": limit, "group_rate": rate, "group_burst": burst})
        self._change(queue, {"rate": rate, "burst": burst})

    @twin_of(rate)
    def arate(self) -> None: ...

    def pause(self) -> None:
        """Deliver no message of the group until :meth:`resume`. Messages in flight continue."""
        self._change(self._find(), {"paused": True})

    @twin_of(pause)
    def apause(self) -> None: ...

    def resume(self) -> None:
        """Deliver messages of a paused group again. Its limit and its rate stay."""
        self._change(self._find(), {"paused": False})

    @twin_of(resume)
    def aresume(self) -> None: ...

    def reset(self) -> None:
        """Give the group the queue's settings again, and resume it."""
        self._rows(self._find()).delete()

    @twin_of(reset)
    def areset(self) -> None: ...

    def settings(self) -> GroupSetting | None:
        """Return the group's own settings; None if it has only the queue's.

        >>> queue("mails").group("customer 12").settings().limit
        50
        """
        return self._rows(self._find()).first()

    @twin_of(settings)
    def asettings(self) -> None: ...

    def _find(self) -> Queue:
        """Return the queue, read from the database and not from the cache."""
        alias = Queue.objects.database(self.using)
        try:
            found = Queue.objects.using(alias).named(self.queue).first()
        except ProgrammingError as error:
            raise explained(error, alias) from error.__cause__
        if found is None:
            raise QueueNotFound(self.queue, alias)
        return found

    def _rows(self, queue: Queue) -> models.QuerySet[GroupSetting]:
        return GroupSetting.objects.using(queue.alias).filter(queue=queue, group_key=self.key)

    def _change(self, queue: Queue, values: dict[str, Any]) -> None:
        """Store these settings. Deletes the row if the group then has no own settings."""
        if any(values.values()):
            row = GroupSetting(queue=queue, group_key=self.key, **values)
            GroupSetting.objects.using(queue.alias).bulk_create(
                [row],
                update_conflicts=True,
                unique_fields=["queue", "group_key"],
                update_fields=list(values),
            )
            return
        with transaction.atomic(using=queue.alias):
            self._rows(queue).update(**values)
            self._rows(queue).filter(limit=None, rate=None, paused=False).delete()
