"""Settings of one group: ``queue("mails").group("customer 12").limit(50)``."""

from __future__ import annotations

from typing import Any

from django.db import DatabaseError, models

from django_pgqueue.database.acting import operating
from django_pgqueue.engine import arguments
from django_pgqueue.errors import InvalidArgument, QueueNotFound
from django_pgqueue.queues.decorators import twin_of
from django_pgqueue.tables.group import GroupSetting
from django_pgqueue.tables.queue import Queue, explained

#: The values of a group without settings of its own.
_NO_SETTINGS = {"limit": None, "rate": None, "paused": False}


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
    def alimit(self, *args, **kwargs):
        return self.limit(*args, **kwargs)

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
        queue = self._find()
        own = self._rows(queue).first()
        limit = None if own is None else own.limit
        self._change(queue, self._rated(queue, limit, rate, burst))

    @twin_of(rate)
    def arate(self, *args, **kwargs):
        return self.rate(*args, **kwargs)

    def limits(
        self, *, limit: int | None = None, rate: str | None = None, burst: int | None = None
    ) -> None:
        """Set the limit and the rate at once. What is left out is the queue's.

        Arguments:
            limit: as that of :meth:`limit`.
            rate: as that of :meth:`rate`.
            burst: as that of :meth:`rate`.

        >>> queue("mails").group("customer 12").limits(limit=50, rate="10/s")

        Raises InvalidArgument as these methods do.
        """
        arguments.slots(limit, "limit")
        queue = self._find()
        self._change(queue, {"limit": limit, **self._rated(queue, limit, rate, burst)})

    @twin_of(limits)
    def alimits(self, *args, **kwargs):
        return self.limits(*args, **kwargs)

    def pause(self) -> None:
        """Deliver no message of the group until :meth:`resume`. Messages in flight continue."""
        self._change(self._find(), {"paused": True})

    @twin_of(pause)
    def apause(self, *args, **kwargs):
        return self.pause(*args, **kwargs)

    def resume(self) -> None:
        """Deliver messages of a paused group again. Its limit and its rate stay."""
        self._change(self._find(), {"paused": False})

    @twin_of(resume)
    def aresume(self, *args, **kwargs):
        return self.resume(*args, **kwargs)

    def reset(self) -> None:
        """Give the group the queue's settings again, and resume it."""
        queue = self._find()
        with operating(queue.alias):
            self._rows(queue).delete()

    @twin_of(reset)
    def areset(self, *args, **kwargs):
        return self.reset(*args, **kwargs)

    def settings(self) -> GroupSetting | None:
        """Return the group's own settings; None if it has only the queue's.

        >>> queue("mails").group("customer 12").settings().limit
        50
        """
        return self._rows(self._find()).first()

    @twin_of(settings)
    def asettings(self, *args, **kwargs):
        return self.settings(*args, **kwargs)

    def _find(self) -> Queue:
        """Return the queue, read from the database and not from the cache."""
        alias = Queue.objects.database(self.using)
        try:
            found = Queue.objects.using(alias).named(self.queue).first()
        except DatabaseError as error:
            raise explained(error, alias) from error.__cause__
        if found is None:
            raise QueueNotFound(self.queue, alias)
        found.opened.refuse_subscription("it keeps no groups, so they have no settings")
        return found

    def _rows(self, queue: Queue) -> models.QuerySet[GroupSetting]:
        return GroupSetting.objects.using(queue.alias).filter(queue=queue, group_key=self.key)

    @staticmethod
    def _rated(
        queue: Queue, limit: int | None, rate: str | None, burst: int | None
    ) -> dict[str, Any]:
        """Return a rate and its burst as values of a group with this limit, if they fit."""
        arguments.rate(rate, "rate")
        arguments.slots(burst, "burst")
        if rate is not None and queue.group_rate is None:
            raise InvalidArgument(
                f"queue {queue.name!r} has no group_rate, so none of its groups can have a rate. "
                f"Give the queue a group_rate that no group reaches, such as "
                f'AlterQueue({queue.name!r}, group_rate="10000/s"). The messages of its groups '
                f"then start in any order"
            )
        limit = queue.group_limit if limit is None else limit
        arguments.limits_together({"group_limit": limit, "group_rate": rate, "group_burst": burst})
        return {"rate": rate, "burst": burst}

    def _change(self, queue: Queue, values: dict[str, Any]) -> None:
        """Store these settings. Deletes the row if the group then has no own settings."""
        with operating(queue.alias):
            if any(values.values()):
                row = GroupSetting(queue=queue, group_key=self.key, **values)
                GroupSetting.objects.using(queue.alias).bulk_create(
                    [row],
                    update_conflicts=True,
                    unique_fields=["queue", "group_key"],
                    update_fields=list(values),
                )
                return
            # Deleted or updated, never both: the audit log has one entry for each change.
            others = {key: no for key, no in _NO_SETTINGS.items() if key not in values}
            rows = self._rows(queue)
            if not rows.filter(**others).delete()[0]:
                rows.update(**values)
