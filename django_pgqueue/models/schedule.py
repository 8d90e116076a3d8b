"""Schedules: messages that are sent at set times, by whichever consumer comes first."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any, ClassVar

from django.core.exceptions import ValidationError
from django.core.serializers.json import DjangoJSONEncoder
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import IntegrityError, connections, models, transaction
from django.utils.translation import gettext_lazy

from django_pgqueue import arguments, cron
from django_pgqueue.errors import InvalidArgument, PgQueueError
from django_pgqueue.models.bound import queue
from django_pgqueue.models.queue import Queue

__all__ = ["Missed", "Schedule"]

#: Missed ticks that one transaction sends.
_TICKS = 1000
#: A tick that is later than this was missed.
_LATE = dt.timedelta(minutes=1)
_SHORTEST = dt.timedelta(seconds=1)

_TIMES = ("cron", "interval", "time_zone", "paused")


class Missed(models.TextChoices):
    """The treatment of ticks at which no consumer ran."""

    ONCE = "once", "Send one message for all of them"
    ALL = "all", "Send a message for each"
    SKIP = "skip", "Send none that is more than a minute late"


class ScheduleManager(models.Manager["Schedule"]):
    """Sends what is due, and takes over what the code declares."""

    use_in_migrations = False

    def send_due(self, *, using: str, now: dt.datetime | None = None) -> int:
        """Send the messages of all ticks that have come; how many were sent.

        Safe for many processes to do at once: the message and the next tick are written in one
        transaction, and a schedule that another process works on is passed by. ``now`` is the
        server's, unless a test says otherwise.

        >>> Schedule.objects.send_due(using="default")
        1
        """
        with transaction.atomic(using=using):
            moment = _now(using) if now is None else now
            due = (
                self._runnable(using)
                .filter(next_run_at__lte=moment)
                .select_related("queue")
                .select_for_update(skip_locked=True, of=("self",))
                .order_by("next_run_at")
            )
            return sum(schedule.send(moment) for schedule in due[:100])

    def seconds_until_next(self, *, using: str) -> float | None:
        """How long it is until the next tick by the server's clock; None when there is none."""
        soonest = self._runnable(using).aggregate(soonest=models.Min("next_run_at"))["soonest"]
        return None if soonest is None else (soonest - _now(using)).total_seconds()

    def declare(self, name: str, queue_name: str, *, using: str, **values: Any) -> bool:
        """Make the schedule that the code declares, or change it; False when it is known.

        What was changed in the admin stays, until the declaration itself changes.

        Raises QueueNotFound, InvalidArgument.
        """
        declared: dict[str, Any] = {**values, "queue": queue_name}
        if (interval := values.get("interval")) is not None:
            declared["interval"] = interval.total_seconds()
        # As the row gives it back, so that they compare equal.
        declared = json.loads(str(arguments.json_text(declared)))
        found = Queue.objects.resolve(queue_name, using)
        with transaction.atomic(using=using):
            schedule = self.using(using).select_for_update().filter(name=name).first()
            if schedule is not None and schedule.declared == declared:
                return False
            schedule = schedule or Schedule(name=name)
            for field, value in values.items():
                setattr(schedule, field, value)
            schedule.queue_id = found.pk
            schedule.declared = declared
            try:
                with transaction.atomic(using=using):
                    schedule.save(using=using)
            except IntegrityError:
                if self.using(using).filter(name=name).exists():
                    return False  # another process was first
                raise
        return True

    def _runnable(self, using: str) -> models.QuerySet[Schedule]:
        schedules = self.using(using).filter(paused=False)
        # Another process may be able to read them.
        return schedules if cron.available() else schedules.filter(cron="")


class Schedule(models.Model):
    """A message that is sent again and again.

    Either ``cron``, in its ``time_zone``, or ``interval`` says when. Each message has the header
    ``x-schedule`` with the schedule's name and the tick that it is for. Changes count within
    seconds, without a restart.

    >>> Schedule.objects.create(
    ...     name="nightly", queue=Queue.objects.get(name="reports"), cron="0 4 * * *",
    ...     time_zone="Europe/Berlin", body={"report": "sales"},
    ... )
    <Schedule: nightly>

    Raises InvalidArgument when it is saved with times that make no sense.
    """

    id: models.BigAutoField[int, int] = models.BigAutoField(primary_key=True)
    name: models.TextField[str, str] = models.TextField(unique=True)
    queue: models.ForeignKey[Queue, Queue] = models.ForeignKey(
        Queue, models.CASCADE, db_constraint=False, related_name="schedules"
    )
    cron: models.TextField[str, str] = models.TextField(
        blank=True,
        default="",
        help_text="Minute, hour, day of month, month, day of week, as 0 4 * * *.",
    )
    interval: models.DurationField[dt.timedelta | None, dt.timedelta | None] = models.DurationField(
        null=True,
        blank=True,
        help_text="In place of cron: the time between two messages.",
    )
    time_zone: models.TextField[str, str] = models.TextField(
        default="UTC", help_text="Of the cron expression."
    )
    missed: models.TextField[str, str] = models.TextField(
        choices=Missed.choices, default=Missed.ONCE
    )
    paused: models.BooleanField[bool, bool] = models.BooleanField(
        default=False, help_text="Nothing is sent meanwhile."
    )
    body: models.JSONField[Any, Any] = models.JSONField(
        null=True, blank=True, encoder=DjangoJSONEncoder
    )
    priority: models.SmallIntegerField[int, int] = models.SmallIntegerField(
        default=0, validators=[MinValueValidator(-100), MaxValueValidator(100)]
    )
    declared: models.JSONField[Any, Any] = models.JSONField(
        null=True, editable=False, help_text="What the code says, if it does."
    )
    next_run_at: models.DateTimeField[dt.datetime, dt.datetime] = models.DateTimeField(
        editable=False
    )
    last_run_at: models.DateTimeField[dt.datetime | None, dt.datetime | None] = (
        models.DateTimeField(
            null=True,
            editable=False,
            help_text="The last tick that a message was sent for.",
        )
    )
    error: models.TextField[str, str] = models.TextField(blank=True, default="", editable=False)

    objects: ClassVar[ScheduleManager] = ScheduleManager()

    class Meta:
        verbose_name: ClassVar[Any] = gettext_lazy("schedule")
        verbose_name_plural: ClassVar[Any] = gettext_lazy("schedules")
        db_table = "pgqueue_schedule"
        ordering: ClassVar[tuple[str, ...]] = ("name",)
        required_db_vendor = "postgresql"
        indexes: ClassVar[tuple[models.Index, ...]] = (
            models.Index(
                fields=["next_run_at"],
                condition=models.Q(paused=False),
                name="pgqueue_schedule_next",
            ),
        )

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """The checks of forms."""
        try:
            self._check()
        except InvalidArgument as error:
            raise ValidationError(str(error)) from error

    def save(self, *args: Any, using: str | None = None, **kwargs: Any) -> None:
        """Save the settings; the next tick is told anew when the times have changed."""
        self._check()
        alias = using or self._state.db or Queue.objects.database()
        with transaction.atomic(using=alias):
            old = None
            if not self._state.adding:
                known = type(self).objects.using(alias).select_for_update()
                old = known.filter(pk=self.pk).first()
            if old is None or any(getattr(old, f) != getattr(self, f) for f in _TIMES):
                now = _now(alias)
                self.next_run_at = self.following(now, now)
                self.error = ""
            else:
                # A row read a while ago must not bring a tick back that was sent since.
                self.next_run_at, self.last_run_at = old.next_run_at, old.last_run_at
            super().save(*args, using=alias, **kwargs)

    def following(self, last: dt.datetime, after: dt.datetime) -> dt.datetime:
        """The first tick after this moment. ``last`` is where an interval counts from."""
        if self.interval is not None:
            return cron.following_interval(last, self.interval, after)
        return cron.following(self.cron, self.time_zone, after)

    def send(self, now: dt.datetime) -> int:
        """Send the messages of the ticks until now, and move on; how many were sent.

        To be called with the row locked. A tick that cannot be sent is over too: ``error`` says
        why, and the next one is tried in its turn.
        """
        try:
            ticks, next_run_at = self._ticks(now)
        except InvalidArgument as error:
            self._update(paused=True, error=str(error))
            return 0
        changes: dict[str, Any] = {"next_run_at": next_run_at, "error": ""}
        if ticks:
            alias = str(self._state.db)
            names = [{"x-schedule": {"name": self.name, "at": t.isoformat()}} for t in ticks]
            try:
                with transaction.atomic(using=alias):
                    queue(self.queue.name, using=alias).send_batch(
                        [self.body] * len(ticks), headers=names, priority=self.priority
                    )
                changes["last_run_at"] = ticks[-1]
            except PgQueueError as error:
                ticks, changes["error"] = [], str(error)
        self._update(**changes)
        return len(ticks)

    def _ticks(self, now: dt.datetime) -> tuple[list[dt.datetime], dt.datetime]:
        """The ticks to send a message for, and the one to go on with."""
        tick = self.next_run_at
        if self.missed == Missed.ALL:
            ticks: list[dt.datetime] = []
            while tick <= now and len(ticks) < _TICKS:
                ticks.append(tick)
                tick = self.following(tick, tick)
            return ticks, tick
        is_late = self.missed == Missed.SKIP and now - tick > _LATE
        return ([] if is_late else [tick]), self.following(tick, now)

    def _update(self, **changes: Any) -> None:
        for name, value in changes.items():
            setattr(self, name, value)
        type(self).objects.using(self._state.db).filter(pk=self.pk).update(**changes)

    def _check(self) -> None:
        if bool(self.cron) == (self.interval is not None):
            raise InvalidArgument("a schedule has either a cron expression or an interval")
        cron.zone(self.time_zone)
        if self.missed not in Missed.values:
            raise InvalidArgument(
                f"missed is one of {', '.join(Missed.values)}, not {self.missed!r}"
            )
        if self.cron:
            cron.check(self.cron, self.time_zone)
        elif self.interval is not None and self.interval < _SHORTEST:
            raise InvalidArgument(f"interval must be at least a second, not {self.interval}")


def _now(using: str) -> dt.datetime:
    """By the server's clock: those of the consumers may differ."""
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        (now,) = cursor.fetchone()
    moment: dt.datetime = now
    return moment
