"""Schedules: messages that consumer processes send at set times."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Collection, Iterable
from typing import Any, ClassVar

from django.conf import settings
from django.core.serializers.json import DjangoJSONEncoder
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import connections, models, transaction
from django.utils.timezone import is_aware, make_naive
from django.utils.translation import gettext_lazy

from django_pgqueue import signals
from django_pgqueue.acks import text_of
from django_pgqueue.database.acting import operating
from django_pgqueue.database.home import HomeManager
from django_pgqueue.database.locks import milliseconds, settings_for
from django_pgqueue.database.runner import runner
from django_pgqueue.engine import arguments, cron, times
from django_pgqueue.engine.audit.entry import record
from django_pgqueue.engine.names import MESSAGE
from django_pgqueue.engine.sqlstates import LOCK_NOT_AVAILABLE, sqlstate
from django_pgqueue.engine.times import as_microseconds
from django_pgqueue.errors import InvalidArgument, PgQueueError
from django_pgqueue.queues.bound import queue
from django_pgqueue.queues.ticks import KEPT, Outcome, Tick, tick_at
from django_pgqueue.tables import columns
from django_pgqueue.tables.process import Process
from django_pgqueue.tables.queue import Queue
from django_pgqueue.types import was_skipped
from django_pgqueue.validators import validate

#: Maximum number of missed ticks that one transaction sends.
_TICKS = 1000
#: Maximum number of missed ticks that are computed at a time, to note the latest of them.
_WALK = 100
#: With ``Missed.SKIP``, a tick that is later than this is not sent.
_LATE = dt.timedelta(minutes=1)
#: Seconds that a send waits for a lock of another session.
_PATIENCE = 0.2

_TIMES = ("cron", "interval", "time_zone", "paused", "ended_at")
#: The fields that ticks write.
_RUNS = frozenset({"next_run_at", "last_run_at", "ticks", "error"})

#: If the server's clock is set back by less than this, ticks already sent are not sent again.
_AHEAD = dt.timedelta(days=2)


def _microseconds(field: str) -> models.Func:
    return models.Func(
        models.F(field),
        template=as_microseconds("%(expressions)s"),
        output_field=models.BigIntegerField(),
    )


_TO_SOURCE = "give the schedule its source, and each of its subscriptions gets the messages"


def _may_send(queue_id: str) -> models.Func:
    """Return an SQL condition: the role may send to the queue, or the queue has no table."""
    return models.Func(
        models.F(queue_id),
        template=f"coalesce(has_any_column_privilege("
        f"to_regclass('{MESSAGE}_q' || %(expressions)s)::oid, 'INSERT'), true)",
        output_field=models.BooleanField(),
    )


class Missed(models.TextChoices):
    """What to send for ticks that were due while no consumer ran."""

    ONCE = "once", "Send one message for all of them"
    ALL = "all", "Send a message for each"
    SKIP = "skip", "Send none that is more than a minute late"


class ScheduleManager(HomeManager["Schedule"]):
    """Sends the messages of due schedules, and saves the schedules that the code declares."""

    def send_due(self, *, using: str) -> int:
        """Send the messages of the schedules that are due. Returns the number of messages.

        Several processes may call it at once: each skips the schedules that another has locked, and
        commits a message together with the next tick. If a schedule fails, the others are still
        sent; an error that could not be stored is raised at the end. Schedules of queues that the
        role may not send to are skipped.
        """
        moment = _now(using)
        due = self._runnable(using).filter(next_run_at__lte=moment)
        sent, locked = 0, set[int]()

        def send(pk: int, queue_id: int) -> None:
            nonlocal sent
            if queue_id in locked:
                return  # the queue is locked, so another try would wait again
            with transaction.atomic(using=using):
                schedule = (
                    due.filter(pk=pk)
                    .select_related("queue")
                    .select_for_update(skip_locked=True, of=("self",))
                    .first()
                )
                if schedule is None:
                    return
                try:
                    with transaction.atomic(using=using):
                        sent += schedule.send(moment)
                except Exception as error:
                    if not connections[using].is_usable():
                        raise
                    schedule.fail(moment, error)
                    if sqlstate(error) == LOCK_NOT_AVAILABLE:
                        locked.add(queue_id)

        failed: list[Exception] = []
        for pk, queue_id in due.order_by("next_run_at").values_list("pk", "queue_id"):
            try:
                send(pk, queue_id)
            except Exception as error:
                failed.append(error)
                if not connections[using].is_usable():
                    break
        if failed:
            raise failed[0]
        return sent

    def timed(self, using: str) -> models.QuerySet[Schedule]:
        """Return all schedules, with ``tick`` and ``ran``: the times of the next and last tick.

        Both are microseconds since 1970. Unlike ``next_run_at`` and ``last_run_at`` they are
        unambiguous in an hour that clocks repeat, even without ``USE_TZ``.
        """
        moments = {"tick": _microseconds("next_run_at"), "ran": _microseconds("last_run_at")}
        return self.using(using).annotate(**moments)

    def mend(self, *, using: str) -> list[Schedule]:
        """Correct next ticks that are too late because the server's clock was ahead.

        Returns the corrected schedules. Their ``tick`` is still the old, late tick.
        """
        moment = _now(using)
        rows = self._runnable(using)
        late = [row.pk for row in rows.defer("body", "ticks") if row.sooner(moment)]
        mended = []
        if late:
            with transaction.atomic(using=using):
                for row in rows.filter(pk__in=late).select_for_update(skip_locked=True):
                    if sooner := row.sooner(moment):
                        row._update(next_run_at=sooner)
                        mended.append(row)
        return mended

    def seconds_until_next(self, *, using: str, overdue: bool = True) -> float | None:
        """Return the seconds until the next tick, by the server's clock; None if there is none.

        A failed tick does not count: it is retried whenever other ticks are sent. Without
        ``overdue`` no tick counts that is due already.
        """
        failed = ~models.Q(error="") if overdue else models.Q()
        waiting = self._runnable(using).exclude(failed, next_run_at__lte=columns.NOW)
        soonest = waiting.aggregate(soonest=models.Min("tick"))["soonest"]
        return None if soonest is None else (times.moment(soonest) - _now(using)).total_seconds()

    def declare(self, name: str, queue_name: str, *, using: str, **values: Any) -> bool:
        """Create or update the schedule that the code declares. Returns whether anything changed.

        Changes made in the admin stay until the declaration itself changes. An ended schedule is
        resumed from now. If the role may not send to the queue, nothing changes: a process whose
        role may send must store the declaration.

        Raises QueueNotFound, InvalidArgument.
        """
        declared: dict[str, Any] = {**values, "queue": queue_name}
        for field in ("interval", "expires"):
            if (span := values.get(field)) is not None:
                declared[field] = span.total_seconds()
        # A round trip through JSON makes the declaration comparable with the stored one.
        declared = json.loads(str(arguments.json_text(declared)))
        found = Queue.objects.resolve(queue_name, using)
        found.opened.refuse_subscription(_TO_SOURCE)
        if self.using(using).filter(name=name, declared=declared, ended_at=None).exists():
            return False
        if not Queue.objects.using(using).filter(_may_send("pk"), pk=found.pk).exists():
            return False
        with (
            operating(using),
            connections[using].cursor() as cursor,
            settings_for(cursor, lock_timeout=milliseconds(_PATIENCE)),
        ):
            fields = {**values, "queue_id": found.pk, "declared": declared}
            schedule, created = (
                self.using(using).select_for_update().get_or_create(fields, name=name)
            )
            if created:
                return True
            if schedule.declared == declared and schedule.ended_at is None:
                return False  # another process has just declared it
            if schedule.declared != declared:
                for field, value in fields.items():
                    setattr(schedule, field, value)
            schedule.ended_at = None
            schedule.save(using=using)
        return True

    def undeclared(
        self, names: Collection[str], queues: Collection[int], *, using: str
    ) -> set[str]:
        """Return the names of declared schedules that no running process declares any more.

        ``names`` are the schedules that the caller's own code declares, ``queues`` the ids of the
        queues that it consumes. Schedules of other queues are not checked: other processes do that.
        """
        rows = self.using(using).filter(declared__isnull=False, ended_at=None, queue__in=queues)
        found = set(rows.exclude(name__in=names).values_list("name", flat=True))
        return found - Process.objects.declared(using=using) if found else found

    def end(self, names: Collection[str], *, using: str) -> list[Schedule]:
        """End these schedules, so that they send no more messages. Returns the ended schedules.

        A schedule whose row is locked is skipped.
        """
        with transaction.atomic(using=using):
            rows = self.using(using).filter(name__in=names, ended_at=None)
            ended = list(
                rows.select_related("queue").select_for_update(skip_locked=True, of=("self",))
            )
            for schedule in ended:
                schedule._update(ended_at=_now(using))
        return ended

    def _runnable(self, using: str) -> models.QuerySet[Schedule]:
        schedules = self.timed(using).filter(_may_send("queue_id"), paused=False, ended_at=None)
        # Without cronsim, this process leaves cron expressions to other processes.
        return schedules if cron.cronsim else schedules.filter(cron="")


class Schedule(models.Model):
    """A message that is sent repeatedly, at the times (ticks) of the schedule.

    The times come from ``cron``, in the ``time_zone``, or from ``interval``. Each message has the
    header ``x-schedule`` with the schedule's name and the time of its tick. Changes take effect
    within seconds, without a restart.

    >>> Schedule.objects.create(
    ...     name="nightly", queue=Queue.objects.get(name="reports"), cron="0 4 * * *",
    ...     time_zone="Europe/Berlin", body={"report": "sales"},
    ... )
    <Schedule: nightly>

    Saving raises InvalidArgument for invalid times, and for a message that could not be sent.
    """

    id: columns.BigAutoKey = models.BigAutoField(primary_key=True)
    name: columns.Text = models.TextField(unique=True)
    queue: models.ForeignKey[Queue, Queue] = models.ForeignKey(
        Queue, models.CASCADE, db_constraint=False, related_name="schedules"
    )
    cron: columns.Text = models.TextField(
        blank=True,
        default="",
        help_text="Minute, hour, day of month, month, day of week, as 0 4 * * *.",
    )
    interval: columns.DurationOrNull = models.DurationField(
        null=True, blank=True, help_text="The time between two messages, instead of cron."
    )
    time_zone: columns.Text = models.TextField(
        default="UTC", help_text="The time zone of the cron expression."
    )
    missed: columns.Text = models.TextField(choices=Missed.choices, default=Missed.ONCE)
    paused: columns.Boolean = models.BooleanField(
        default=False, help_text="While paused, the schedule sends nothing."
    )
    body: columns.JSON = models.JSONField(null=True, blank=True, encoder=DjangoJSONEncoder)
    priority: columns.SmallInteger = models.SmallIntegerField(
        default=0, validators=[MinValueValidator(-100), MaxValueValidator(100)]
    )
    expires: columns.DurationOrNull = models.DurationField(
        null=True,
        blank=True,
        help_text="How long after its send a message expires. Empty: never.",
    )
    group_key: columns.Text = models.TextField(
        blank=True, default="", help_text="The group of the messages. Empty: none."
    )
    unique_key: columns.Text = models.TextField(
        blank=True,
        default="",
        help_text=(
            "While a message holds this key, no second one is sent. Empty: every tick sends one."
        ),
    )
    until: columns.Text = models.TextField(
        choices=[("started", "It has started"), ("done", "It is done")],
        blank=True,
        default="",
        help_text="How long a message holds the key. Empty: the queue's unique window.",
    )
    declared: columns.JSON = models.JSONField(
        null=True, editable=False, help_text="The declaration in the code, if there is one."
    )
    ended_at: columns.TimeOrNull = models.DateTimeField(
        null=True,
        editable=False,
        help_text="Since when no running consumer declares it. It sends nothing.",
    )
    next_run_at: columns.Time = models.DateTimeField(editable=False)
    last_run_at: columns.TimeOrNull = models.DateTimeField(
        null=True, editable=False, help_text="The last tick for which a message was sent."
    )
    error: columns.Text = models.TextField(blank=True, default="", editable=False)
    ticks: columns.JSON = models.JSONField(
        default=list, editable=False, help_text="The latest ticks, the oldest first."
    )

    #: The next and the last tick in microseconds since 1970, set by ``objects.timed()``.
    tick: int
    ran: int | None

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
        """Raise ValidationError for settings that :meth:`save` would refuse. Forms call it."""
        validate(self.check_settings)

    def save(
        self,
        *args: Any,
        using: str | None = None,
        update_fields: Iterable[str] | None = None,
        **kwargs: Any,
    ) -> None:
        """Save the settings, and recompute the next tick if the times changed."""
        self.check_settings()
        if self.queue_id is not None:
            self.queue.opened.refuse_subscription(_TO_SOURCE)
        alias = using or self._state.db or Queue.objects.database()
        with operating(alias):
            old, fields = None, update_fields
            if not self._state.adding:
                rows = type(self).objects.using(alias).select_for_update()
                old = rows.filter(pk=self.pk).first()
            if old is not None:
                for name in _RUNS:  # those of this object may be older
                    setattr(self, name, getattr(old, name))
                if fields is None:
                    fields = (f.name for f in self._meta.concrete_fields if not f.primary_key)
                fields = set(fields) - _RUNS
            if old is None or any(getattr(old, f) != getattr(self, f) for f in _TIMES):
                now = _now(alias)
                self.next_run_at = self.following(now, now)
                self.error = ""
                if fields is not None:
                    fields = {*fields, "next_run_at", "error"}
            super().save(*args, using=alias, update_fields=fields, **kwargs)
        if not settings.USE_TZ and is_aware(self.next_run_at):
            self.next_run_at = make_naive(self.next_run_at)

    def following(self, last: dt.datetime, after: dt.datetime) -> dt.datetime:
        """Return the first tick after ``after``. Intervals count from ``last``."""
        if self.interval is not None:
            try:
                return last + ((after - last) // self.interval + 1) * self.interval
            except ArithmeticError as error:  # zero, or beyond the year 9999
                raise InvalidArgument(f"interval {self.interval} has no next tick") from error
        return cron.following(self.cron, self.time_zone, after)

    def sooner(self, now: dt.datetime) -> dt.datetime | None:
        """Return the next tick computed now, if the stored one is later; else None.

        The stored tick is too late if the server's clock ran ahead and was set back. Ticks that
        were sent up to two days ahead are not sent again.
        """
        tick = times.moment(self.tick)
        ran = now if self.ran is None else times.moment(self.ran)
        try:
            sooner = self.following(tick, ran if now < ran <= now + _AHEAD else now)
        except InvalidArgument:
            return None
        return sooner if sooner < tick else None

    def send(self, now: dt.datetime) -> int:
        """Send the messages for the ticks up to ``now``, and store the next tick.

        Returns the number of messages. The caller must have read the schedule with
        :meth:`ScheduleManager.timed`, and locked its row.
        """
        ticks, missed, next_run_at = self._ticks(now)
        if not ticks:
            self._update(next_run_at=next_run_at, ticks=self._noted(_missed(missed)))
            return 0
        alias = str(self._state.db)
        with (
            connections[alias].cursor() as cursor,
            settings_for(cursor, lock_timeout=milliseconds(_PATIENCE)),
        ):
            key = self.unique_key
            ids = queue(self.queue.name, using=alias).send_batch(
                [self.body] * len(ticks),
                headers=[self._header(tick) for tick in ticks],
                unique=[key] * len(ticks) if key else None,
                **self._options,
            )
        sent = [_sent(tick, now, pk) for tick, pk in zip(ticks, ids, strict=True)]
        self._update(
            next_run_at=next_run_at,
            last_run_at=ticks[-1],
            error="",
            ticks=self._noted([*sent, *_missed(missed)]),
        )
        return sum(not was_skipped(pk) for pk in ids)

    def run(self, *, unique: str | None = None, until: dt.timedelta | None = None) -> int:
        """Send a message now, and leave the ticks unchanged. Returns the message's id.

        If a message holds the schedule's unique key, sends nothing and returns that message's id.
        ``unique`` and ``until`` count for a schedule without a key.

        >>> Schedule.objects.get(name="nightly").run()
        4711

        Raises QueueNotFound, InvalidMessage.
        """
        given = {"unique": self.unique_key or unique, **self._options}
        if not self.unique_key:
            given["until"] = until
        with transaction.atomic(using=self._state.db):
            return self._run("run", _now(str(self._state.db)), given)

    def run_missed(self, tick: Tick) -> int:
        """Send the message of a missed tick now, with the tick's own time in its header.

        Returns the message's id. The tick is one of :attr:`latest_ticks`, and counts as sent from
        now on. If a message holds the schedule's unique key, sends nothing and returns that
        message's id: the tick stays missed.

        >>> schedule = Schedule.objects.get(name="nightly")
        >>> [schedule.run_missed(tick) for tick in schedule.latest_ticks if tick.is_missed]
        [4712, 4713]

        Raises InvalidArgument if the tick was not missed, or was sent since, QueueNotFound and
        InvalidMessage.
        """
        alias = str(self._state.db)
        with transaction.atomic(using=alias):
            rows = type(self).objects.using(alias).select_related("queue")
            row = rows.select_for_update(of=("self",)).get(pk=self.pk)
            known = row.latest_ticks
            found = tick_at(known, tick.microseconds)
            if found is None:
                raise InvalidArgument(
                    f"{self.name} has no tick {tick.at.isoformat()} among its latest {KEPT}: use "
                    f"run() to send its message without the tick's time"
                )
            if not found.is_missed:
                raise InvalidArgument(
                    f"the tick {tick.at.isoformat()} of {self.name} is not missed: message "
                    f"{found.message_id} was sent for it, or holds its unique key"
                )
            pk = row._run("run_missed", tick.at, {"unique": row.unique_key or None, **row._options})
            if not was_skipped(pk):
                sent = _sent(tick.at, _now(alias), pk)
                row._update(ticks=[sent if each == found else each for each in known])
        self.ticks = row.ticks
        return pk

    @property
    def latest_ticks(self) -> list[Tick]:
        """The latest ticks with what became of each, the oldest first."""
        return [Tick.of(each) for each in self.ticks]

    def delete(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, int]]:
        with operating(kwargs.get("using") or str(self._state.db)):
            return super().delete(*args, **kwargs)

    @property
    def _options(self) -> dict[str, Any]:
        """The arguments that all sends of the schedule have."""
        return {
            "priority": self.priority,
            "expires": self.expires,
            "group": self.group_key or None,
            "until": (self.unique_key and self.until) or None,
        }

    def _run(self, operation: str, tick: dt.datetime, options: dict[str, Any]) -> int:
        """Send the message of a tick, and record that with the name of the operation."""
        alias, name = str(self._state.db), self.queue.name
        pk = queue(name, using=alias).send(self.body, headers=self._header(tick), **options)
        if not was_skipped(pk):
            told = {"schedule": self.name, "ids": [pk]}
            if operation != "run":
                told["tick"] = tick.isoformat()
            record(runner(alias), operation, (self.queue_id, name), told, 1)
        return pk

    def _header(self, tick: dt.datetime) -> dict[str, Any]:
        return {"x-schedule": {"name": self.name, "at": tick.isoformat()}}

    def fail(self, now: dt.datetime, error: Exception) -> None:
        """Store the error of :meth:`send`.

        A schedule with invalid times is paused. If this package refused the message, the tick is
        skipped. Any other error may be temporary, so the tick is tried again.
        """
        changes: dict[str, Any] = {"error": text_of(error).partition("\n")[0]}
        if isinstance(error, PgQueueError):
            try:
                ticks, missed, changes["next_run_at"] = self._ticks(now)
                failed = [Tick.at_moment(tick, Outcome.FAILED) for tick in ticks]
                changes["ticks"] = self._noted([*failed, *_missed(missed)])
            except InvalidArgument:
                changes["paused"] = True
        if any(getattr(self, name) != value for name, value in changes.items()):
            self._update(**changes)
        signals.schedule_failed.send_robust(
            self.queue.name, schedule=self, at=times.moment(self.tick), error=error
        )

    def _ticks(self, now: dt.datetime) -> tuple[list[dt.datetime], list[dt.datetime], dt.datetime]:
        """Return the ticks that need a message now, the missed ones, and the next tick."""
        tick = times.moment(self.tick)
        if self.missed == Missed.ALL:
            ticks: list[dt.datetime] = []
            while tick <= now and len(ticks) < _TICKS:
                ticks.append(tick)
                tick = self.following(tick, tick)
            return ticks, [], tick
        missed, next_run_at = self._passed(tick, now)
        if self.missed == Missed.SKIP and now - tick > _LATE:
            return [], [tick, *missed], next_run_at
        return [tick], missed, next_run_at

    def _passed(self, tick: dt.datetime, now: dt.datetime) -> tuple[list[dt.datetime], dt.datetime]:
        """Return the latest ticks after ``tick`` up to now, and the next tick after these.

        If many have passed, only those of a shorter time before now are computed.
        """
        start = tick
        while True:
            passed: list[dt.datetime] = []
            following = self.following(tick, start)
            while following <= now and len(passed) < _WALK:
                passed.append(following)
                following = self.following(tick, following)
            if following > now:
                return passed, following
            start += (now - start) / 2

    def _noted(self, ticks: list[Tick]) -> list[Any]:
        """Return the value of ``ticks`` after these ticks."""
        return [*self.ticks, *ticks][-KEPT:]

    def _update(self, **changes: Any) -> None:
        for name, value in changes.items():
            setattr(self, name, value)
        type(self).objects.using(self._state.db).filter(pk=self.pk).update(**changes)

    def check_settings(self) -> None:
        """Raise InvalidArgument for settings with which no message could be sent."""
        if not arguments.text(self.name, "name"):
            raise InvalidArgument("a schedule needs a name")
        self.interval = arguments.span(self.interval, "interval")
        self.expires = arguments.span(self.expires, "expires")
        arguments.priority(self.priority)
        arguments.key(self.group_key or None, "group_key")
        arguments.key(self.unique_key or None, "unique_key")
        arguments.json_text(self.body)
        if self.until not in ("", "started", "done"):
            raise InvalidArgument(
                f'until must be "started", "done" or left out, not {self.until!r}'
            )
        if bool(self.cron) == (self.interval is not None):
            raise InvalidArgument("a schedule needs either a cron expression or an interval")
        if self.until and not self.unique_key:
            raise InvalidArgument("until needs a unique key: give both, or neither")
        cron.zone(self.time_zone)
        if self.missed not in Missed.values:
            raise InvalidArgument(
                f"missed must be one of {', '.join(Missed.values)}, not {self.missed!r}"
            )
        if self.cron:
            cron.check(self.cron, self.time_zone)


def _now(using: str) -> dt.datetime:
    """Return the server's time, since the clocks of consumers may differ."""
    with connections[using].cursor() as cursor:
        return times.server_time(cursor)


def _sent(tick: dt.datetime, now: dt.datetime, pk: int) -> Tick:
    """Return a tick for which a send returned the id ``pk``."""
    outcome = Outcome.HELD if was_skipped(pk) else Outcome.SENT
    return Tick.at_moment(tick, outcome, max(0, round((now - tick).total_seconds())), int(pk))


def _missed(ticks: list[dt.datetime]) -> list[Tick]:
    return [Tick.at_moment(tick, Outcome.MISSED) for tick in ticks]
