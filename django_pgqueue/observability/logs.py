"""All log lines about messages and consumers.

The logger is ``django_pgqueue``. Each record carries its values as ``extra`` fields (``queue``,
``message_id``, ``count``, ``seconds`` …) for JSON formatters. Normal events have the level DEBUG or
INFO; failures have WARNING or ERROR, with the handler's traceback. Control characters of error
texts are escaped in log lines; in tracebacks, only :class:`Formatter` escapes them.
"""

from __future__ import annotations

import datetime as dt
import logging
import re
import time
from logging import DEBUG, ERROR, INFO, WARNING
from typing import Any

from django_pgqueue import signals
from django_pgqueue.acks import describe

logger = logging.getLogger("django_pgqueue")


def connect() -> None:
    """Connect each function of this module to the signal of the same name."""
    for name in signals.__all__:
        if receiver := globals().get(name):
            getattr(signals, name).connect(receiver, dispatch_uid=f"pgqueue-log-{name}")


class Formatter(logging.Formatter):
    """Escapes control characters, so that an error text cannot control a terminal or forge a line.

    Tracebacks keep their line breaks.
    """

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(_printable(line) for line in super().format(record).split("\n"))


def configure_if_unset(*, counts_shown: bool = False) -> None:
    """Unless the project has configured logging, log to stderr, with this package at INFO.

    ``counts_shown``: a terminal shows how many messages are completed, so the log leaves them out.
    """
    if logger.hasHandlers():
        return
    handler = logging.StreamHandler()
    if counts_shown:
        handler.addFilter(lambda record: record.funcName != messages_completed.__name__)
    handler.setFormatter(Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.addFilter(lambda record: not _is_shown(record))
    logging.getLogger().addHandler(handler)
    logger.setLevel(INFO)


def _is_shown(record: logging.LogRecord) -> bool:
    """Whether another logger's handler shows the record, as Django's console does under DEBUG."""
    found: logging.Logger | None = logging.getLogger(record.name)
    while found is not None and found.parent is not None:
        for handler in found.handlers:
            streams = isinstance(handler, logging.StreamHandler)
            if streams and record.levelno >= handler.level and handler.filter(record):
                return True
        found = found.parent
    return False


def messages_fetched(sender: str, count: int, seconds: float, **kwargs: Any) -> None:
    text = f"fetched %(count)s messages in {seconds * 1000:.1f} ms"
    _log(DEBUG, sender, text, count=count, seconds=seconds)


def messages_completed(sender: str, messages: list[Any], **kwargs: Any) -> None:
    if len(messages) == 1:
        _log(INFO, sender, "%(message)s completed", messages[0])
    else:
        _log(INFO, sender, "completed %(count)s messages", count=len(messages))


def messages_retried(sender: str, messages: list[Any], outcomes: list[Any], **kwargs: Any) -> None:
    text = "%(message)s failed in attempt %(attempt)s, next try in %(delay).1f s: %(error)s"
    for message, outcome in zip(messages, outcomes, strict=True):
        delay, number = outcome.delay or 0.0, message.attempts + 1
        fields = {"attempt": number, "delay": delay, "error": outcome.reason}
        _log(WARNING, sender, text, message, outcome.cause, **fields)


def messages_failed(sender: str, messages: list[Any], outcomes: list[Any], **kwargs: Any) -> None:
    text = "%(message)s failed for good after %(deliveries)s deliveries: %(error)s"
    for message, outcome in zip(messages, outcomes, strict=True):
        fields = {"deliveries": message.read_ct, "error": outcome.reason}
        _log(ERROR, sender, text, message, outcome.__cause__, **fields)


#: The log lines of ``error_ignored``, by its reason.
_IGNORED = {
    "policy": (
        "%(message)s failed in attempt %(attempt)s, and is not tried again, as its ack_policy "
        "says: %(error)s"
    ),
    "settled": (
        "%(message)s was settled by its handler, which then failed in attempt %(attempt)s: "
        "%(error)s"
    ),
    "committed": (
        "%(message)s is done, and its transaction committed. Then a hook of on_commit failed; "
        "hooks after it did not run: %(error)s"
    ),
}


def error_ignored(sender: str, message: Any, error: Any, why: str, **kwargs: Any) -> None:
    fields = {"attempt": message.attempts + 1, "error": describe(error)}
    _log(ERROR, sender, _IGNORED[why], message, error, **fields)


def messages_discarded(sender: str, messages: list[Any], **kwargs: Any) -> None:
    _log(INFO, sender, "discarded %(count)s messages", count=len(messages))


def messages_exhausted(sender: str, receipts: list[Any], **kwargs: Any) -> None:
    text = (
        "message %(message_id)s failed for good: it was delivered %(deliveries)s times, which is "
        "the maximum"
    )
    for pk, times, *_ in receipts:
        _log(ERROR, sender, text, message_id=pk, deliveries=times)


def messages_expired(sender: str, ids: list[int], **kwargs: Any) -> None:
    _log(INFO, sender, "archived %(count)s expired messages unhandled", count=len(ids))


def messages_released(sender: str, count: int, **kwargs: Any) -> None:
    _log(INFO, sender, "released %(count)s unstarted messages", count=count)


def messages_interrupted(sender: str, messages: list[Any], seconds: float, **kwargs: Any) -> None:
    text = (
        "%(message)s was interrupted after %(seconds).1f s, because this process stopped. The "
        "message is due again. Raise --graceful-timeout if handlers need longer"
    )
    for message in messages:
        _log(WARNING, sender, text, message, seconds=seconds)


def messages_cancelled(
    sender: str, messages: list[Any], reasons: list[str | None], **kwargs: Any
) -> None:
    for message, reason in zip(messages, reasons, strict=True):
        why = " (%(reason)s)" if reason else ""
        text = f"%(message)s was cancelled{why}; its handler's outcome is ignored"
        _log(INFO, sender, text, message, reason=reason)


def leases_lost(sender: str, messages: list[Any], **kwargs: Any) -> None:
    text = (
        "lost the lease of %(message)s to another reader; its work may be done twice. Give the "
        "queue a longer visibility_timeout if this happens often"
    )
    for message in messages:
        _log(WARNING, sender, text, message)


def leases_rescued(sender: str, count: int, worker: int, **kwargs: Any) -> None:
    text = "released %(count)s leases of dead consumer process %(worker)s"
    _log(WARNING, None, text, count=count, worker=worker)


def database_failed(
    sender: Any,
    operation: str,
    error: Exception,
    wait: float,
    queue: str | None = None,
    **kwargs: Any,
) -> None:
    text = "%(operation)s failed, next try in %(delay).1f s: %(kind)s: %(error)s"
    _log_once((str(sender), operation, queue), queue, text, error, operation=operation, delay=wait)


def database_recovered(
    sender: Any, operation: str, failures: int, queue: str | None = None, **kwargs: Any
) -> None:
    _repeated.pop((str(sender), operation, queue), None)
    text = "%(operation)s works again, after %(failures)s failures"
    _log(INFO, queue, text, operation=operation, failures=failures)


def listening_stopped(sender: str, reason: str, **kwargs: Any) -> None:
    text = (
        "LISTEN does not work on database %(database)r, so its queues are polled (%(reason)s). "
        "Start with --no-listen to poll without trying LISTEN"
    )
    _log(WARNING, None, text, database=sender, reason=reason)


def pool_too_small(sender: str, size: int, workers: int, wanted: int, **kwargs: Any) -> None:
    text = (
        "the pool of database %(database)r has %(size)s connections for %(workers)s workers: "
        "workers that get none in time release their messages. Set max_size to %(wanted)s or more"
    )
    _log(WARNING, None, text, database=sender, size=size, workers=workers, wanted=wanted)


#: Pairs (queue, lakes) whose warning was logged. It is logged once, not in every round.
_warned: set[tuple[str, tuple[str, ...]]] = set()


#: Queues whose messages stay in the default partition, which is warned of once.
_staying: set[str] = set()


def queue_maintained(sender: str, maintained: Any, **kwargs: Any) -> None:
    if not maintained.error:
        _repeated.pop((sender, "maintenance", None), None)
    lakes = maintained.foreign_lakes
    if lakes and (sender, lakes) not in _warned:
        _warned.add((sender, lakes))
        text = (
            "retention removes nothing, because lakes from another server hold it: %(lakes)s. "
            "Export to a new lake with --hold-retention, then unset "
            '"holds retention" of the old lake in the admin'
        )
        _log(WARNING, sender, text, lakes=list(lakes))
    did = maintained.removed or maintained.partitions_made or maintained.partitions_dropped
    stay = maintained.stay_in_default
    warned = sender in _staying
    (_staying.add if stay else _staying.discard)(sender)
    kept = "; the messages of %(stay_in_default)s stay in the default partition" if stay else ""
    _log(
        WARNING if stay and not warned else INFO if did else DEBUG,
        sender,
        f"removed %(removed)s archived messages and %(partitions_dropped)s partitions, "
        f"made %(partitions_made)s partitions, in %(seconds).1f s{kept}",
        removed=maintained.removed,
        **maintained.as_dict(),
    )


def messages_lost(sender: str, count: int, **kwargs: Any) -> None:
    text = (
        "the subscription has lost %(count)s messages: they left the source before it read them, "
        "after its keep_for. Run more consumers, or set a longer keep_for"
    )
    _log(ERROR, sender, text, count=count)


def maintenance_failed(sender: str, error: Exception, **kwargs: Any) -> None:
    text = "maintenance failed: %(kind)s: %(error)s"
    _log_once((sender, "maintenance", None), sender, text, error)


#: The last failed tick by schedule name. A tick is retried often, but its failure is logged once.
_failed_ticks: dict[str, dt.datetime] = {}


def schedule_failed(
    sender: str, schedule: Any, at: dt.datetime, error: Exception, **kwargs: Any
) -> None:
    name = schedule.name
    if _failed_ticks.get(name) != at:
        _failed_ticks[name] = at
        text = "schedule %(schedule)s could not send the message due at %(at)s: %(error)s"
        _log_error(sender, text, error, schedule=name, at=at.isoformat())


def bulk_action_ended(sender: Any, bulk_action: Any, **kwargs: Any) -> None:
    error = bulk_action.error
    text = "bulk action %(bulk_action)s (%(kind)s) %(state)s after %(done)s of %(count)s messages"
    _log(
        ERROR if error else INFO,
        bulk_action.queue.name,
        f"{text}: %(error)s" if error else text,
        bulk_action=bulk_action.pk,
        kind=bulk_action.kind,
        state=bulk_action.state,
        done=bulk_action.done + bulk_action.passed,
        count=bulk_action.count,
        error=error,
    )


def batch_done(sender: str, batch: Any, **kwargs: Any) -> None:
    counts = ", ".join(f"{n} {name}" for name, n in batch.counts.items() if n) or "no members"
    _log(INFO, sender, "batch %(batch)s is done: %(counts)s", batch=batch.pk, counts=counts)


def batch_abandoned(sender: str, batch: Any, **kwargs: Any) -> None:
    text = (
        "batch %(batch)s was sealed with %(members)s members, because its time ran out: its sender "
        "may have died, and members may be missing"
    )
    _log(WARNING, sender, text, batch=batch.pk, members=batch.members)


def batch_failed(sender: str, batch: Any, error: Exception, **kwargs: Any) -> None:
    text = "batch %(batch)s could not send its callback to %(target)s, and tries again: %(error)s"
    _log_error(sender, text, error, batch=batch.pk, target=batch.then_queue)


def schedule_ended(sender: str, schedule: Any, **kwargs: Any) -> None:
    text = "schedule %(schedule)s ended, because no running consumer declares it any more"
    _log(WARNING, sender, text, schedule=schedule.name)


def consumer_started(sender: Any, consumer: Any, **kwargs: Any) -> None:
    names = ", ".join(subscription.name for subscription in consumer.subscriptions)
    _log(INFO, None, "consumer started: %(queues)s", queues=names)


def consumer_stopping(sender: Any, consumer: Any, reason: str, **kwargs: Any) -> None:
    _log(INFO, None, "consumer stops: %(reason)s", reason=reason or "an error")


def announcements_dropped(sender: Any, count: int, **kwargs: Any) -> None:
    text = (
        "dropped the log lines and signals of %(count)s events, because receivers were too slow "
        "for the graceful timeout. The outcomes of messages are written"
    )
    _log(WARNING, None, text, count=count)


def consumer_stopped(sender: Any, consumer: Any, **kwargs: Any) -> None:
    _log(INFO, None, "consumer stopped after %(seconds).1f s", seconds=consumer.uptime)


def _log(
    level: int,
    queue: str | None,
    text: str,
    message: Any = None,
    exc_info: BaseException | None = None,
    **fields: Any,
) -> None:
    """Log a line with the queue's name in front, and with ``fields`` as its extra fields.

    The placeholders of ``text`` are the fields, of which only the first line is shown, and
    ``%(message)s``, which names the message.
    """
    if not logger.isEnabledFor(level):
        return
    named: dict[str, str] = {}
    if message is not None:
        fields = {"message_id": message.id, "task": message.task, **fields}
        task = "" if message.task is None else f" ({message.task})"
        named = {"message": f"message {message.id}{task}"}
    if queue is not None:
        text, fields = f"%(queue)s: {text}", {"queue": queue, **fields}
    shown = {name: _shown(value) for name, value in fields.items()}
    logger.log(level, text, {**shown, **named}, exc_info=exc_info, extra=fields, stacklevel=2)


#: A repeated error is logged again after this many seconds.
_AGAIN = 600.0
#: The most errors of one operation that are told apart.
_DIFFERENT = 20
#: By operation, and then by error: when it was logged, when it last happened, and how often since.
_repeated: dict[tuple[str, str, str | None], dict[str, tuple[float, float, int]]] = {}


def _log_once(
    key: tuple[str, str, str | None], queue: str | None, text: str, error: Exception, **fields: Any
) -> None:
    """Log an error unless the same operation had the same error before: loops try again for ever.

    Logs it again when the operation works again meanwhile, or was not tried, and every ten minutes.
    """
    now, known = time.monotonic(), _repeated.setdefault(key, {})
    # Numbers in an error, such as those of processes and ports, do not make it another one.
    kind = type(error).__name__ + re.sub(r"\d+", "", str(error).partition("\n")[0])
    logged, last, times = known.get(kind, (-_AGAIN, -_AGAIN, 0))
    if now - logged < _AGAIN and now - last < _AGAIN / 2:
        known[kind] = logged, now, times + 1
        return
    if len(known) >= _DIFFERENT:
        known.clear()
    known[kind] = now, now, 0
    if times:
        text, fields["times"] = f"{text} (%(times)s times more since the last line)", times
    _log_error(queue, text, error, **fields)


def _log_error(queue: str | None, text: str, error: Exception, **fields: Any) -> None:
    """Log an error, with the name of its class as the field ``kind``.

    Only Python's built-in exceptions get a traceback, since they mean a defect in the code.
    """
    kind = type(error)
    trace = error if kind.__module__.startswith("builtins") else None
    _log(ERROR, queue, text, **fields, kind=kind.__name__, error=str(error), exc_info=trace)


def _shown(value: Any) -> Any:
    if isinstance(value, list):
        value = ", ".join(value)
    return _printable(value.partition("\n")[0]) if isinstance(value, str) else value


def _printable(text: str) -> str:
    """Escape the control characters of a text.

    >>> _printable("red: \x1b[31m")
    'red: \\\\x1b[31m'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
