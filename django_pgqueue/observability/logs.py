"""All log lines about messages and consumers.

The logger is ``django_pgqueue``. Each record carries its values as ``extra`` fields (``queue``,
``message_id``, ``count``, ``seconds`` …) for JSON formatters. Normal events have the level DEBUG;
failures have WARNING or ERROR, with the handler's traceback. Control characters in error texts are
escaped in the lines, and by :class:`Formatter` in tracebacks.
"""

from __future__ import annotations

import datetime as dt
import logging
from typing import Any

from django_pgqueue import signals

__all__ = ["Formatter", "configure_if_unset", "connect"]

logger = logging.getLogger("django_pgqueue")


def connect() -> None:
    """Connect a log function to each signal. Called once, when the app is ready."""
    for signal, listener in (
        (signals.messages_fetched, fetched),
        (signals.messages_completed, completed),
        (signals.messages_retried, retried),
        (signals.messages_failed, failed),
        (signals.messages_discarded, discarded),
        (signals.messages_exhausted, exhausted),
        (signals.messages_released, released),
        (signals.messages_interrupted, interrupted),
        (signals.messages_cancelled, cancelled),
        (signals.leases_lost, lost),
        (signals.leases_rescued, rescued),
        (signals.database_failed, database_failed),
        (signals.listening_stopped, listening_stopped),
        (signals.pool_too_small, pool_too_small),
        (signals.queue_maintained, maintained),
        (signals.maintenance_failed, maintenance_failed),
        (signals.schedule_failed, schedule_failed),
        (signals.bulk_action_ended, bulk_action_ended),
        (signals.schedule_ended, schedule_ended),
        (signals.consumer_started, started),
        (signals.consumer_stopping, stopping),
        (signals.consumer_stopped, stopped),
    ):
        signal.connect(listener, dispatch_uid=f"pgqueue-log-{listener.__name__}")


class Formatter(logging.Formatter):
    """Escapes control characters, so that errors' texts cannot control a terminal or forge lines.

    Tracebacks keep their line breaks.
    """

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(_printable(line) for line in super().format(record).split("\n"))


def configure_if_unset() -> None:
    """Log to stderr, this package from INFO on, unless the project has configured logging."""
    if logger.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.getLogger().addHandler(handler)
    logger.setLevel(logging.INFO)


def fetched(sender: str, count: int, seconds: float, **kwargs: Any) -> None:
    logger.debug(
        "%s: fetched %s in %.1f ms",
        sender,
        count,
        seconds * 1000,
        extra={"queue": sender, "count": count, "seconds": seconds},
    )


def completed(sender: str, messages: list[Any], **kwargs: Any) -> None:
    logger.debug(
        "%s: completed %s",
        sender,
        len(messages),
        extra={"queue": sender, "count": len(messages)},
    )


def retried(sender: str, messages: list[Any], outcomes: list[Any], **kwargs: Any) -> None:
    for message, outcome in zip(messages, outcomes, strict=True):
        logger.warning(
            "%s: message %s failed in attempt %s, next try in %.1f s: %s",
            sender,
            _named(message),
            message.attempts + 1,
            outcome.delay or 0.0,
            _first_line(outcome.reason),
            extra={
                "queue": sender,
                "message_id": message.id,
                "task": message.task,
                "attempt": message.attempts + 1,
                "delay": outcome.delay,
                "error": outcome.reason,
            },
            exc_info=outcome.cause,
        )


def failed(sender: str, messages: list[Any], outcomes: list[Any], **kwargs: Any) -> None:
    for message, outcome in zip(messages, outcomes, strict=True):
        logger.error(
            "%s: message %s failed for good after %s deliveries: %s",
            sender,
            _named(message),
            message.read_ct,
            _first_line(outcome.reason),
            extra={
                "queue": sender,
                "message_id": message.id,
                "task": message.task,
                "deliveries": message.read_ct,
                "error": outcome.reason,
            },
            exc_info=outcome.__cause__,
        )


def discarded(sender: str, messages: list[Any], **kwargs: Any) -> None:
    logger.info(
        "%s: discarded %s",
        sender,
        len(messages),
        extra={"queue": sender, "count": len(messages)},
    )


def exhausted(sender: str, receipts: list[Any], **kwargs: Any) -> None:
    for receipt in receipts:
        logger.error(
            "%s: message %s failed for good: it was delivered %s times, which is the maximum",
            sender,
            receipt.id,
            receipt.read_ct,
            extra={"queue": sender, "message_id": receipt.id, "deliveries": receipt.read_ct},
        )


def released(sender: str, count: int, **kwargs: Any) -> None:
    logger.info(
        "%s: gave back %s unstarted", sender, count, extra={"queue": sender, "count": count}
    )


def interrupted(sender: str, messages: list[Any], seconds: float, **kwargs: Any) -> None:
    for message in messages:
        logger.warning(
            "%s: this process stopped and interrupted message %s after %.1f s; it is due again. "
            "Raise --graceful-timeout if handlers need longer",
            sender,
            _named(message),
            seconds,
            extra={
                "queue": sender,
                "message_id": message.id,
                "task": message.task,
                "seconds": seconds,
            },
        )


def cancelled(sender: str, messages: list[Any], reasons: list[str | None], **kwargs: Any) -> None:
    for message, reason in zip(messages, reasons, strict=True):
        logger.info(
            "%s: message %s was cancelled%s; its handler's outcome is ignored",
            sender,
            _named(message),
            f" ({_first_line(reason)})" if reason else "",
            extra={
                "queue": sender,
                "message_id": message.id,
                "task": message.task,
                "reason": reason,
            },
        )


def lost(sender: str, messages: list[Any], **kwargs: Any) -> None:
    for message in messages:
        logger.warning(
            "%s: lost the lease of message %s to another reader; its work may be done twice. Give "
            "the queue a longer visibility_timeout if this happens often",
            sender,
            _named(message),
            extra={"queue": sender, "message_id": message.id, "task": message.task},
        )


def rescued(sender: str, count: int, worker: int, **kwargs: Any) -> None:
    logger.warning(
        "gave back %s leases of dead consumer process %s",
        count,
        worker,
        extra={"count": count, "worker": worker},
    )


def database_failed(
    sender: str, operation: str, error: Exception, wait: float, **kwargs: Any
) -> None:
    logger.error(
        "%s failed, next try in %.1f s: %s: %s",
        operation,
        wait,
        type(error).__name__,
        _first_line(str(error)),
        extra={"operation": operation, "error": str(error), "delay": wait},
        exc_info=error if _is_defect(error) else None,
    )


def listening_stopped(sender: str, reason: str, **kwargs: Any) -> None:
    logger.warning(
        "LISTEN does not work on database %r, so its queues are polled (%s). Start with "
        "--no-listen to poll without trying LISTEN",
        sender,
        _first_line(reason),
        extra={"database": sender, "reason": reason},
    )


def pool_too_small(sender: str, size: int, workers: int, wanted: int, **kwargs: Any) -> None:
    logger.warning(
        "the pool of database %r has %s connections for %s workers: workers that get none in time "
        "give their messages back. Set max_size to %s or more",
        sender,
        size,
        workers,
        wanted,
        extra={"database": sender, "size": size, "workers": workers},
    )


def maintained(sender: str, maintained: Any, **kwargs: Any) -> None:
    if maintained.foreign_lakes:
        _warn_of_foreign_lakes(sender, maintained.foreign_lakes)
    did = maintained.removed or maintained.partitions_made or maintained.partitions_dropped
    stay = maintained.stay_in_default
    logger.log(
        logging.WARNING if stay else logging.INFO if did else logging.DEBUG,
        "%s: removed %s archived messages, %s partitions; made %s partitions%s, in %.1f s",
        sender,
        maintained.removed,
        maintained.partitions_dropped,
        maintained.partitions_made,
        f"; the messages of {stay} stay in the default partition" if stay else "",
        maintained.seconds,
        extra={"queue": sender, **maintained.as_dict()},
    )


#: Queues and lakes of earlier warnings: each pair is logged once, not at every round.
_warned: set[tuple[str, tuple[str, ...]]] = set()


def _warn_of_foreign_lakes(queue: str, lakes: tuple[str, ...]) -> None:
    if (queue, lakes) in _warned:
        return
    _warned.add((queue, lakes))
    logger.warning(
        "%s: retention removes nothing, because it waits for %s, which was exported from another "
        'server. Export to a new lake with --hold-retention, then unset "holds retention" of the '
        "old one in the admin",
        queue,
        ", ".join(lakes),
        extra={"queue": queue, "lakes": list(lakes)},
    )


def maintenance_failed(sender: str, error: Exception, **kwargs: Any) -> None:
    logger.error(
        "%s: maintenance failed: %s: %s",
        sender,
        type(error).__name__,
        _first_line(str(error)),
        extra={"queue": sender, "error": str(error)},
        exc_info=error if _is_defect(error) else None,
    )


#: The last failed tick of each schedule: a failing tick is retried often, but logged once.
_failed_ticks: dict[str, dt.datetime] = {}


def schedule_failed(
    sender: str, schedule: Any, at: dt.datetime, error: Exception, **kwargs: Any
) -> None:
    if _failed_ticks.get(schedule.name) == at:
        return
    _failed_ticks[schedule.name] = at
    logger.error(
        "%s: schedule %s could not send the message of %s: %s",
        sender,
        schedule.name,
        at.isoformat(),
        _first_line(str(error)),
        extra={"queue": sender, "schedule": schedule.name, "error": str(error)},
        exc_info=error if _is_defect(error) else None,
    )


def bulk_action_ended(sender: Any, bulk_action: Any, **kwargs: Any) -> None:
    failed = bool(bulk_action.error)
    logger.log(
        logging.ERROR if failed else logging.INFO,
        "%s: bulk action %s (%s) %s after %s of %s messages%s",
        bulk_action.queue.name,
        bulk_action.pk,
        bulk_action.kind,
        bulk_action.state,
        bulk_action.done + bulk_action.passed,
        bulk_action.count,
        f": {_first_line(bulk_action.error)}" if failed else "",
        extra={
            "queue": bulk_action.queue.name,
            "bulk_action": bulk_action.pk,
            "error": bulk_action.error,
        },
    )


def schedule_ended(sender: str, schedule: Any, **kwargs: Any) -> None:
    logger.warning(
        "%s: schedule %s ended, because no running consumer declares it any more",
        sender,
        schedule.name,
        extra={"queue": sender, "schedule": schedule.name},
    )


def started(sender: Any, consumer: Any, **kwargs: Any) -> None:
    names = ", ".join(subscription.name for subscription in consumer.subscriptions)
    logger.info("consumer started: %s", names, extra={"queues": names})


def stopping(sender: Any, consumer: Any, reason: str, **kwargs: Any) -> None:
    logger.info("consumer stops: %s", reason or "an error", extra={"reason": reason})


def stopped(sender: Any, consumer: Any, **kwargs: Any) -> None:
    logger.info(
        "consumer stopped after %.1f s", consumer.uptime, extra={"seconds": consumer.uptime}
    )


def _is_defect(error: Exception) -> bool:
    """Whether to log the traceback: for Python's own exceptions, not for database errors."""
    return type(error).__module__.startswith("builtins")


def _named(message: Any) -> str:
    """The message's id, followed by its task's name, if any."""
    return f"{message.id}" if message.task is None else f"{message.id} ({message.task})"


def _first_line(text: str) -> str:
    return _printable(text.partition("\n")[0])


def _printable(text: str) -> str:
    """The text with its control characters escaped.

    >>> _printable("red: \x1b[31m")
    'red: \\\\x1b[31m'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
