"""The options of the data source, with Kafka's names where the meaning is the same.

The documentation's page about Spark says what each one means.
"""

# A field's default describes its option.
# ruff: noqa: RUF009

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from django_pgqueue.engine.wording import length_of
from django_pgqueue.types import OnConflict, Until
from pyspark_pgqueue.errors import InvalidOption
from pyspark_pgqueue.source.columns import ARCHIVE, CONSUMED, COUNTS, LIVE, Column
from pyspark_pgqueue.source.offsets import EARLIEST, Offset, Snapshot

# Options that Spark adds itself.
_SPARKS = {"path", "checkpointlocation", "queryname", "outputmode"}

_COLUMNS = {"archive": ARCHIVE, "live": LIVE, "counts": COUNTS}

FROM_THE_START = Offset(EARLIEST)

#: Maximum rows of a task. Spark spends 60 ms between two tasks of a core: a fifth of a read's time
#: if a task had 200,000 rows.
ROWS_PER_TASK = 1_000_000


# Parsers take an option's name, for errors, and its text.


def _text(name: str, text: str) -> str:
    return text


def _list(name: str, text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _pattern(name: str, text: str) -> str | None:
    return re.compile(text).pattern or None


def _number(name: str, text: str, least: int = 1) -> int:
    if not text.strip().isdigit() or int(text) < least:
        raise InvalidOption(f"{name} must be an integer of at least {least}, not {text!r}")
    return int(text)


def _choice(*known: str) -> Callable[[str, str], str]:
    def chosen(name: str, text: str) -> str:
        if text not in known:
            raise InvalidOption(f"{name} must be {' or '.join(known)}, not {text!r}")
        return text

    return chosen


def _flag(name: str, text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise InvalidOption(f"{name} must be true or false, not {text!r}")
    return text.lower() == "true"


def _pushdown(name: str, text: str) -> bool | None:
    return None if text == "auto" else _flag(name, text)


def _until(name: str, text: str) -> Until:
    if text == "started" or text == "done":
        return text  # type: ignore[return-value]
    return _length(name, text, "started, done or a length of time")


def _length(name: str, text: str, what: str = "a length of time") -> float:
    """Parse a length of time, such as ``15m``, into seconds."""
    length = dt.timedelta(seconds=int(text)) if text.isdecimal() else length_of(text)
    if length is None:
        raise InvalidOption(f"{name} must be {what}, such as 30s or 15m, not {text!r}")
    return length.total_seconds()


def _offset(name: str, text: str) -> Offset | None:
    if text == "latest":
        return None
    if text == "earliest":
        return FROM_THE_START
    try:
        value: Any = json.loads(text)
        if isinstance(value, dict) and "xid" in value:
            return Offset(Snapshot.below(int(value["xid"])))
        return Offset.parse(value)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidOption(
            f"{name} must be earliest, latest or an offset as JSON, not {text!r}. An offset is "
            f'{{"s": "xmin:xmax:running"}}, as in a checkpoint, or {{"xid": 123}} for the position '
            f"after all transactions below 123."
        ) from error


def _moment(name: str, text: str) -> str:
    """Convert an ISO 8601 time, or milliseconds since 1970 as in Kafka, for PostgreSQL."""
    if text.isdigit():
        return dt.datetime.fromtimestamp(int(text) / 1000, dt.timezone.utc).isoformat()
    try:
        return moment_of(text).isoformat()
    except ValueError as error:
        raise InvalidOption(
            f"{name}: {text!r} is not a time: write ISO 8601, or milliseconds since 1970"
        ) from error


def moment_of(text: str) -> dt.datetime:
    """Parse ISO 8601, in UTC unless it has a zone. Raises ValueError."""
    # Python 3.10 does not parse the Z.
    moment = dt.datetime.fromisoformat(text.replace("Z", "+00:00"))
    return moment if moment.tzinfo else moment.replace(tzinfo=dt.timezone.utc)


def _option(name: str, parse: Callable[[str, str], Any] = _text, default: Any = None) -> Any:
    return dataclasses.field(metadata={"name": name, "parse": parse, "default": default})


@dataclass(frozen=True)
class Options:
    """The parsed options, checked as far as possible without a database."""

    url: str = _option("url", default="")
    source: str = _option("source", _choice(*_COLUMNS), "archive")
    mode: str = _option("mode", _choice("read", "consume"), "read")
    subscribe: tuple[str, ...] = _option("subscribe", _list, ())
    pattern: str | None = _option("subscribePattern", _pattern)
    chosen: tuple[str, ...] = _option("columns", _list, ())
    headers: bool = _option("includeHeaders", _flag, True)
    lake: str | None = _option("lake")
    start: Offset | None = _option("startingOffsets", _offset, FROM_THE_START)  # None: latest
    end: Offset | None = _option("endingOffsets", _offset)  # None: latest
    archived_from: str | None = _option("startingTimestamp", _moment)
    archived_until: str | None = _option("endingTimestamp", _moment)
    body_schema: str | None = _option("bodySchema")
    body_sample: int = _option("bodySample", _number, 1000)
    max_rows: int | None = _option("maxOffsetsPerTrigger", _number)
    max_bytes: int | None = _option("maxBytesPerTrigger", _number)
    min_rows: int = _option("minOffsetsPerTrigger", _number, 1)
    longest_wait: float = _option("maxTriggerDelay", _length, 900.0)
    on_error: str = _option("onError", _choice("deadLetter", "retry"), "deadLetter")
    visibility_timeout: int | None = _option("visibilityTimeout", _number)
    min_partitions: int = _option("minPartitions", _number, 0)
    rows_per_partition: int = _option("maxRecordsPerPartition", _number, ROWS_PER_TASK)
    fail_on_data_loss: bool = _option("failOnDataLoss", _flag, True)
    fail_on_server_change: bool = _option("failOnServerChange", _flag, True)
    replica_timeout: float = _option("replicaTimeout", _length, 60.0)
    pushdown: bool | None = _option("pushdown", _pushdown)
    queue: str | None = _option("queue")
    until: Until | None = _option("until", _until)
    on_conflict: OnConflict = _option("onConflict", _choice("skip", "replace"), "skip")
    txn_app_id: str | None = _option("txnAppId")
    txn_version: int | None = _option("txnVersion", partial(_number, least=0))
    #: An operation to record in the audit log, as JSON. Set by the jobs.
    audit: str | None = _option("auditEntry")

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        """Parse the options that Spark passes. Raises InvalidOption."""
        texts = {key.lower(): value for key, value in given.items()}
        known = [field.metadata for field in dataclasses.fields(cls)]
        names = {each["name"].lower() for each in known}
        if unknown := sorted(texts.keys() - names - _SPARKS):
            raise InvalidOption(
                f"There is no option {', '.join(unknown)}. The options are "
                f"{', '.join(each['name'] for each in known)}."
            )
        if texts.get("subscribe") and texts.get("subscribepattern"):
            raise InvalidOption("Give subscribe or subscribePattern, not both.")
        if ("txnappid" in texts) != ("txnversion" in texts):
            raise InvalidOption("Give txnAppId and txnVersion together.")
        found = cls(
            *(
                each["parse"](each["name"], texts[each["name"].lower()])
                if each["name"].lower() in texts
                else each["default"]
                for each in known
            )
        )
        found._check_mode(texts)
        url = found.url or os.environ.get("PGQUEUE_URL", "")
        if not url:
            raise InvalidOption(
                "No database address: set the option url, or PGQUEUE_URL in the environment of the "
                "driver and the executors, for example to postgresql://user@host/database."
            )
        return dataclasses.replace(found, url=url.removeprefix("jdbc:"))

    def _check_mode(self, texts: Mapping[str, str]) -> None:
        for name in _OF_A_LOG if self.consumes else _OF_A_QUEUE:
            if name.lower() in texts:
                raise InvalidOption(f"{name} has no meaning with mode={self.mode}: leave it out.")
        if self.consumes and not (self.subscribe or self.pattern):
            raise InvalidOption(
                "mode=consume needs the names of queues: set subscribe or subscribePattern."
            )

    @property
    def consumes(self) -> bool:
        return self.mode == "consume"

    @property
    def columns(self) -> dict[str, Column]:
        return CONSUMED if self.consumes else _COLUMNS[self.source]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns to read."""
        every = (name for name in self.columns if self.headers or name != "headers")
        return self.chosen or tuple(every)


# Options that mode=consume refuses, and options that are for mode=consume only.
_OF_A_LOG = (
    "source",
    "lake",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "replicaTimeout",
)
_OF_A_QUEUE = ("maxBytesPerTrigger", "onError", "visibilityTimeout")
