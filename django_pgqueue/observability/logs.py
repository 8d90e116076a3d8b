"""All log lines about messages and consumers.

The logger is ``django_pgqueue``. Each record carries its values as ``extra`` fields (``queue``,
``message_id``, ``count``, ``seconds`` …) for JSON formatters. Normal events have the level DEBUG;
failures have WARNING or ERROR, with the handler's traceback. Control characters in error texts are
escaped in the lines, and by :class:`Formatter` in tracebacks.
"""

from __future__ import annotations

import datetime as dt
import logging
from logging import DEBUG, ERROR, INFO, WARNING
from typing import Any

from django_pgqueue import signals

__all__ = ["Formatter", "configure_if_unset", "connect"]

logger = logging.getLogger("django_pgqueue")


def connect() -> None:
    """Connect each function of this module to the signal of the same name."""
    for name in signals.__all__:
        if receiver := globals().get(name):
            getattr(signals, name).connect(receiver, dispatch_uid=f"pgqueue-log-{name}")


class Formatter(logging.Formatter):
    """Escapes control characters: an error text cannot control a terminal or forge a log line.

    Tracebacks keep their line breaks.
    """

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(_printable(line) for line in super().format(record).split("\n"))


def configure_if_unset() -> None:
    """Log to stderr, this package at INFO, unless the project has configured logging."""
    if logger.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.getLogger().addHandler(handler)
    logger.setLevel(INFO)


def messages_fetched(sender: str, count: int, seconds: float, **kwargs: Any) -> None:
    ms = seconds * 1000
    _log(DEBUG, sender, "fetched %s in %.1f ms", count, ms, count=count, seconds=seconds)


def messages_completed(sender: str, messages: list[Any], **kwargs: Any) -> None:
    _log(DEBUG, sender, "completed %s", len(messages), count=len(messages))


def messages_retried(sender: str, messages: list[Any], outcomes: list[Any], **kwargs: Any) -> None:
    for message, outcome in zip(messages, outcomes, strict=True):
        _log(
            WARNING,
            sender,
            "message %s failed in attempt %s, next try in %.1f s: %s",
            _named(message),
            message.attempts + 1,
            outcome.delay or 0.0,
            _first_line(outcome.reason),
            **_fields(message),
            attempt=message.attempts + 1,
            delay=outcome.delay,
            error=outcome.reason,
            exc_info=outcome.cause,
        )


def messages_failed(sender: str, messages: list[Any], outcomes: list[Any], **kwargs: Any) -> None:
    for message, outcome in zip(messages, outcomes, strict=True):
        _log(
            ERROR,
            sender,
            "message %s failed for good after %s deliveries: %s",
            _named(message),
            message.read_ct,
            _first_line(outcome.reason),
            **_fields(message),
            deliveries=message.read_ct,
            error=outcome.reason,
            exc_info=outcome.__cause__,
        )


def messages_discarded(sender: str, messages: list[Any], **kwargs: Any) -> None:
    _log(INFO, sender, "discarded %s", len(messages), count=len(messages))


def messages_exhausted(sender: str, receipts: list[Any], **kwargs: Any) -> None:
    text = "message %s failed for good: it was delivered %s times, which is the maximum"
    for pk, times, *_ in receipts:
        _log(ERROR, sender, text, pk, times, message_id=pk, deliveries=times)


def messages_expired(sender: str, ids: list[int], **kwargs: Any) -> None:
    _log(INFO, sender, "archived %s unhandled, which had expired", len(ids), count=len(ids))


def messages_released(sender: str, count: int, **kwargs: Any) -> None:
    _log(INFO, sender, "gave back %s unstarted", count, count=count)


def messages_interrupted(sender: str, messages: list[Any], seconds: float, **kwargs: Any) -> None:
    text = (
        "this process stopped and interrupted message %s after %.1f s; it is due again. Raise "
        "--graceful-timeout if handlers need longer"
    )
    for message in messages:
        _log(WARNING, sender, text, _named(message), seconds, **_fields(message), seconds=seconds)


def messages_cancelled(
    sender: str, messages: list[Any], reasons: list[str | None], **kwargs: Any
) -> None:
    text = "message %s was cancelled%s; its handler's outcome is ignored"
    for message, reason in zip(messages, reasons, strict=True):
        why = f" ({_first_line(reason)})" if reason else ""
        _log(INFO, sender, text, _named(message), why, **_fields(message), reason=reason)


def leases_lost(sender: str, messages: list[Any], **kwargs: Any) -> None:
    text = (
        "lost the lease of message %s to another reader; its work may be done twice. Give the "
        "queue a longer visibility_timeout if this happens often"
    )
    for message in messages:
        _log(WARNING, sender, text, _named(message), **_fields(message))


def leases_rescued(sender: str, count: int, worker: int, **kwargs: Any) -> None:
    text = "gave back %s leases of dead consumer process %s"
    _log(WARNING, None, text, count, worker, count=count, worker=worker)


def database_failed(
    sender: str, operation: str, error: Exception, wait: float, **kwargs: Any
) -> None:
    text = "%s failed, next try in %.1f s: %s: %s"
    values = (operation, wait, type(error).__name__)
    _log_error(None, text, *values, error=error, operation=operation, delay=wait)


def listening_stopped(sender: str, reason: str, **kwargs: Any) -> None:
    text = (
        "LISTEN does not work on database %r, so its queues are polled (%s). Start with "
        "--no-listen to poll without trying LISTEN"
    )
    _log(WARNING, None, text, sender, _first_line(reason), database=sender, reason=reason)


def pool_too_small(sender: str, size: int, workers: int, wanted: int, **kwargs: Any) -> None:
    text = (
        "the pool of database %r has %s connections for %s workers: workers that get none in time "
        "give their messages back. Set max_size to %s or more"
    )
    _log(
        WARNING,
        None,
        text,
        *(sender, size, workers, wanted),
        database=sender,
        size=size,
        workers=workers,
    )


def queue_maintained(sender: str, maintained: Any, **kwargs: Any) -> None:
    if maintained.foreign_lakes:
        _warn_of_foreign_lakes(sender, maintained.foreign_lakes)
    did = maintained.removed or maintained.partitions_made or maintained.partitions_dropped
    stay = maintained.stay_in_default
    logger.log(
        WARNING if stay else INFO if did else DEBUG,
        "%s: removed %s archived messages, %s partitions; made %s partitions%s, in %.1f s",
        sender,
        maintained.removed,
        maintained.partitions_dropped,
        maintained.partitions_made,
        f"; the messages of {stay} stay in the default partition" if stay else "",
        maintained.seconds,
        extra={"queue": sender, **maintained.as_dict()},
    )


#: Pairs (queue, lakes) whose warning was logged. It is logged once, not in every round.
_warned: set[tuple[str, tuple[str, ...]]] = set()


def _warn_of_foreign_lakes(queue: str, lakes: tuple[str, ...]) -> None:
    if (queue, lakes) in _warned:
        return
    _warned.add((queue, lakes))
    text = (
        "retention removes nothing, because it waits for %s, which was exported from another "
        'server. Export to a new lake with --hold-retention, then unset "holds retention" of the '
        "old one in the admin"
    )
    _log(WARNING, queue, text, ", ".join(lakes), lakes=list(lakes))


def maintenance_failed(sender: str, error: Exception, **kwargs: Any) -> None:
    _log_error(sender, "maintenance failed: %s: %s", type(error).__name__, error=error)


#: The last failed tick by schedule name. A tick is retried often, but its failure logged once.
_failed_ticks: dict[str, dt.datetime] = {}


def schedule_failed(
    sender: str, schedule: Any, at: dt.datetime, error: Exception, **kwargs: Any
) -> None:
    name = schedule.name
    if _failed_ticks.get(name) != at:
        _failed_ticks[name] = at
        text = "schedule %s could not send the message of %s: %s"
        _log_error(sender, text, name, at.isoformat(), error=error, schedule=name)


def bulk_action_ended(sender: Any, bulk_action: Any, **kwargs: Any) -> None:
    error = bulk_action.error
    _log(
        ERROR if error else INFO,
        bulk_action.queue.name,
        "bulk action %s (%s) %s after %s of %s messages%s",
        bulk_action.pk,
        bulk_action.kind,
        bulk_action.state,
        bulk_action.done + bulk_action.passed,
        bulk_action.count,
        f": {_first_line(error)}" if error else "",
        bulk_action=bulk_action.pk,
        error=error,
    )


def schedule_ended(sender: str, schedule: Any, **kwargs: Any) -> None:
    text = "schedule %s ended, because no running consumer declares it any more"
    _log(WARNING, sender, text, schedule.name, schedule=schedule.name)


def consumer_started(sender: Any, consumer: Any, **kwargs: Any) -> None:
    names = ", ".join(subscription.name for subscription in consumer.subscriptions)
    _log(INFO, None, "consumer started: %s", names, queues=names)


def consumer_stopping(sender: Any, consumer: Any, reason: str, **kwargs: Any) -> None:
    _log(INFO, None, "consumer stops: %s", reason or "an error", reason=reason)


def consumer_stopped(sender: Any, consumer: Any, **kwargs: Any) -> None:
    _log(INFO, None, "consumer stopped after %.1f s", consumer.uptime, seconds=consumer.uptime)


def _log(
    level: int,
    queue: str | None,
    text: str,
    *values: Any,
    exc_info: BaseException | None = None,
    **fields: Any,
) -> None:
    """Log a line. The queue's name goes in front of the text, and into the extra fields."""
    if queue is not None:
        text, values, fields = f"%s: {text}", (queue, *values), {"queue": queue, **fields}
    logger.log(level, text, *values, exc_info=exc_info, extra=fields, stacklevel=2)


def _log_error(queue: str | None, text: str, *values: Any, error: Exception, **fields: Any) -> None:
    """Log an error. The last placeholder in ``text`` takes the error's first line.

    Only Python's built-in exceptions get a traceback, since they mean a defect in the code.
    """
    is_defect = type(error).__module__.startswith("builtins")
    values = (*values, _first_line(str(error)))
    trace = error if is_defect else None
    _log(ERROR, queue, text, *values, **fields, error=str(error), exc_info=trace)


def _fields(message: Any) -> dict[str, Any]:
    return {"message_id": message.id, "task": message.task}


def _named(message: Any) -> str:
    """Return the message's id, with the task's name in parentheses if it has one."""
    return f"{message.id}" if message.task is None else f"{message.id} ({message.task})"


def _first_line(text: str) -> str:
    return _printable(text.partition("\n")[0])


def _printable(text: str) -> str:
    """Escape the control characters of a text.

    >>> _printable("red: \x1b[31m")
    'red: \\\\x1b[31m'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
