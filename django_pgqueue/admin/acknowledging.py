"""Acknowledged alerts: each is folded until it changes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from django.utils.timezone import now

from django_pgqueue.models import Acknowledgement

#: How long an acknowledgement lasts: a day, or an hour if it is not known when the alert began, so
#: that it may have ended and begun again.
LASTS, LASTS_UNDATED = dt.timedelta(days=1), dt.timedelta(hours=1)
#: An alert has changed if this many times as many messages have the problem.
GROWN = 2


class Alert(Protocol):
    """What is compared of an alert of the overview."""

    cause: Any
    subject: str
    causes: Sequence[str]
    harm: int
    begun: dt.datetime | None
    acknowledged: Acknowledgement | None

    @property
    def error_type(self) -> str: ...


def add_acknowledgements(alerts: Sequence[Alert], using: str) -> None:
    """Set ``acknowledged`` of the alerts that are acknowledged, and have not changed since."""
    if alerts:
        rows = Acknowledgement.objects.using(using).filter(at__gt=now() - LASTS)
        known = {(each.cause, each.subject): each for each in rows}
        for alert in alerts:
            row = known.get((alert.cause.key, alert.subject))
            alert.acknowledged = row if row is not None and _is_as(alert, row) else None


def _is_as(alert: Alert, then: Acknowledgement) -> bool:
    """Return whether an alert is what it was when it was acknowledged."""
    is_same = (
        set(alert.causes) <= set(then.causes.split(","))
        and alert.error_type == then.error
        and alert.harm <= GROWN * then.harm
    )
    if alert.begun is None:
        return is_same and then.at > now() - LASTS_UNDATED
    return is_same and alert.begun <= then.at


def acknowledge(alerts: Iterable[Alert], user: object, using: str) -> None:
    """Acknowledge alerts as they are now. Deletes acknowledgements that no longer last."""
    rows = Acknowledgement.objects.using(using)
    for alert in alerts:
        values = {
            "causes": ",".join(alert.causes),
            "error": alert.error_type,
            "harm": alert.harm,
            "by": str(user),
            "at": now(),
        }
        rows.update_or_create(values, cause=alert.cause.key, subject=alert.subject)
    rows.filter(at__lte=now() - LASTS).delete()


def forget(alerts: Iterable[Alert], using: str) -> None:
    """Show acknowledged alerts again."""
    ids = [alert.acknowledged.pk for alert in alerts if alert.acknowledged is not None]
    Acknowledgement.objects.using(using).filter(pk__in=ids).delete()
