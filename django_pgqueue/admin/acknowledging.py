"""Acknowledged alerts: each is folded until it changes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Protocol

from django.core import signing
from django.utils.timezone import now

from django_pgqueue.models import Acknowledgement

#: How long an acknowledgement lasts: a day, or an hour if it is not known when the alert began, so
#: that it may have ended and begun again.
LASTS, LASTS_UNDATED = dt.timedelta(days=1), dt.timedelta(hours=1)
#: An alert has changed if this many times as many messages have the problem.
GROWN = 2
_SALT = "django_pgqueue.alert"


class Alert(Protocol):
    """What is compared of an alert of the overview."""

    cause: Any
    subject: str
    causes: Sequence[str]
    errors: Sequence[str]
    harm: int
    begun: dt.datetime | None
    seen_at: dt.datetime
    acknowledged: Acknowledgement | None


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
        and set(alert.errors) <= set(then.errors.split(","))
        and alert.harm <= GROWN * then.harm
    )
    if alert.begun is None:
        return is_same and then.at > now() - LASTS_UNDATED
    return is_same and alert.begun <= then.at


def signed(alert: Alert) -> str:
    """Return the alert as it is shown, for a form: what a user acknowledges is what he saw."""
    values = {
        "cause": alert.cause.key,
        "subject": alert.subject,
        "causes": ",".join(alert.causes),
        "errors": ",".join(alert.errors),
        "harm": alert.harm,
        "at": alert.seen_at.isoformat(),
    }
    return signing.dumps(values, salt=_SALT)


def as_shown(form: Iterable[str]) -> Iterator[Acknowledgement]:
    """Yield the alerts that a form names, as they were shown; see :func:`signed`."""
    for text in form:
        with suppress(signing.BadSignature, TypeError):  # TypeError: signed by an older version
            values = signing.loads(text, salt=_SALT)
            at = dt.datetime.fromisoformat(values.pop("at"))
            yield Acknowledgement(**values, at=at)


def acknowledge(
    alerts: Iterable[Alert], shown: Iterable[Acknowledgement], user: object, using: str
) -> int:
    """Acknowledge the alerts that still are as they were shown. Returns their number.

    Deletes acknowledgements that no longer last.
    """
    rows = Acknowledgement.objects.using(using)
    present = {(alert.cause.key, alert.subject): alert for alert in alerts}
    done = 0
    for then in shown:
        alert = present.get((then.cause, then.subject))
        if alert is not None and _is_as(alert, then):
            given = {name: getattr(then, name) for name in ("causes", "errors", "harm")}
            given |= {"by": str(user), "at": now()}
            rows.update_or_create(given, cause=then.cause, subject=then.subject)
            done += 1
    rows.filter(at__lte=now() - LASTS).delete()
    return done


def forget(shown: Iterable[Acknowledgement], using: str) -> None:
    """Show acknowledged alerts again."""
    rows = Acknowledgement.objects.using(using)
    for then in shown:
        rows.filter(cause=then.cause, subject=then.subject).delete()
