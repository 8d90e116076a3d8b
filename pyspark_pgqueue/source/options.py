"""The options of the data source, with Kafka's names where the meaning is the same.

=========================  ===================  ==================================================
option                     default              meaning
=========================  ===================  ==================================================
url                        $PGQUEUE_URL         the database's address, for libpq or JDBC
source                     archive              archive; live, the live messages; or counts, the
                                                number of messages by queue and state
mode                       read                 read, or consume: a stream that leases and archives
                                                messages (needs subscribe or subscribePattern)
subscribe                  every queue          names of queues, separated by commas
subscribePattern                                a regular expression that matches whole names
columns                    all                  names of columns, separated by commas
includeHeaders             true                 false leaves out the headers
bodySchema                                      read the body as a struct: its fields as DDL, a
                                                StructType's JSON, or infer; a body that does not
                                                fit is in the column _corrupt_record
bodySample                 1000                 number of bodies that infer samples
lake                                            the path of a lake: a stream reads the messages
                                                that the lake has from its files
startingOffsets            earliest             earliest, latest, or an offset as JSON
endingOffsets              latest               latest, or an offset as JSON (batch only)
startingTimestamp                               archived at or after this time, in ISO 8601 or
                                                milliseconds since 1970
endingTimestamp                                 archived before this time (batch only)
maxOffsetsPerTrigger       no limit             maximum rows in a micro-batch (consume: 10000)
maxBytesPerTrigger         no limit             maximum bytes of bodies in a micro-batch, a soft
                                                limit (consume only)
minOffsetsPerTrigger       1                    number of rows that a micro-batch waits for
maxTriggerDelay            15m                  maximum wait for these rows
onError                    deadLetter           deadLetter or retry messages that the sink's
                                                function refuses (consume only)
visibilityTimeout          the queue's          seconds until a dead driver's messages are
                                                delivered to other readers (consume only)
minPartitions                                   minimum tasks in a batch read that is large enough
maxRecordsPerPartition     1000000              maximum rows in a task, fewer with large bodies
                                                (256 MB); a large read has a multiple of 4 tasks
failOnDataLoss             true                 stop if undelivered rows were purged
failOnServerChange         true                 stop if the server is another one, or was restored
replicaTimeout             60                   seconds that a task waits for a replica to catch up
pushdown                   auto                 true if Spark pushes filters; auto detects it
queue                                           for writing: the queue of all rows, instead of a
                                                column queue
until                      the queue's window   for writing: how long a unique key is held: started,
                                                done, or a length of time such as 10m
onConflict                 skip                 for writing: skip a row whose unique key is held, or
                                                replace the message, if it has not started
txnAppId, txnVersion                            for writing: the job's name and an increasing
                                                number; each version is written once
=========================  ===================  ==================================================
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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


@dataclass(frozen=True)
class Options:
    """The parsed options, checked as far as possible without a database."""

    url: str
    source: str
    consume: bool
    subscribe: tuple[str, ...]
    pattern: str | None
    lake: str | None
    start: Offset | None  # None: latest
    end: Offset | None  # None: latest
    archived_from: str | None
    archived_until: str | None
    body_schema: str | None
    body_sample: int
    max_rows: int | None
    max_bytes: int | None
    min_rows: int
    longest_wait: float
    retries_refused: bool
    visibility_timeout: int | None
    min_partitions: int
    rows_per_partition: int
    fail_on_data_loss: bool
    fail_on_server_change: bool
    replica_timeout: float
    pushdown: bool | None
    queue: str | None
    until: Until | None
    on_conflict: OnConflict
    txn_app_id: str | None
    txn_version: int | None
    audit: str | None  # An operation to record in the audit log, as JSON. Set by the jobs.
    names: tuple[str, ...] = ()

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        """Parse the options that Spark passes. Raises InvalidOption."""
        # Each option is removed when it is parsed. Options left at the end are unknown.
        options = {key.lower(): value for key, value in given.items()}
        if options.get("subscribe") and options.get("subscribepattern"):
            raise InvalidOption("Give subscribe or subscribePattern, not both.")
        if ("txnappid" in options) != ("txnversion" in options):
            raise InvalidOption("Give txnAppId and txnVersion together.")
        if options.get("pushdown") == "auto":
            del options["pushdown"]
        url = options.pop("url", "") or os.environ.get("PGQUEUE_URL", "")
        found = cls(
            url=url.removeprefix("jdbc:"),
            consume=_consumes(options),  # first, since it looks at options that are parsed below
            source=_choice(options, "source", tuple(_COLUMNS)),
            subscribe=tuple(_list(options.pop("subscribe", ""))),
            pattern=re.compile(options.pop("subscribepattern", "")).pattern or None,
            lake=options.pop("lake", None),
            start=_offset(options.pop("startingoffsets", "earliest"), "startingOffsets"),
            end=_offset(options.pop("endingoffsets", "latest"), "endingOffsets"),
            archived_from=_moment(options.pop("startingtimestamp", None)),
            archived_until=_moment(options.pop("endingtimestamp", None)),
            body_schema=options.pop("bodyschema", None),
            body_sample=_number(options, "bodySample") or 1000,
            max_rows=_number(options, "maxOffsetsPerTrigger"),
            max_bytes=_number(options, "maxBytesPerTrigger"),
            min_rows=_number(options, "minOffsetsPerTrigger") or 1,
            longest_wait=_length(options.pop("maxtriggerdelay", "15m"), "maxTriggerDelay"),
            retries_refused=_choice(options, "onError", ("deadLetter", "retry")) == "retry",
            visibility_timeout=_number(options, "visibilityTimeout"),
            min_partitions=_number(options, "minPartitions") or 0,
            rows_per_partition=_number(options, "maxRecordsPerPartition") or ROWS_PER_TASK,
            fail_on_data_loss=_flag(options, "failOnDataLoss"),
            fail_on_server_change=_flag(options, "failOnServerChange"),
            replica_timeout=float(options.pop("replicatimeout", 60)),
            pushdown=_flag(options, "pushdown") if "pushdown" in options else None,
            queue=options.pop("queue", None),
            until=_until(options.pop("until", None)),
            on_conflict=_choice(options, "onConflict", ("skip", "replace")),  # type: ignore[arg-type]
            txn_app_id=options.pop("txnappid", None),
            txn_version=_number(options, "txnVersion", least=0),
            audit=options.pop("auditentry", None),
        )
        headers = _flag(options, "includeHeaders")
        names = _list(options.pop("columns", "")) or [
            name for name in found.columns if headers or name != "headers"
        ]
        if unknown := sorted(options.keys() - _SPARKS):
            raise InvalidOption(
                f"There is no option {', '.join(unknown)}. "
                f"The docstring of pyspark_pgqueue.source.options lists the options."
            )
        if not url:
            raise InvalidOption(
                "No database address: set the option url, or PGQUEUE_URL in the environment of the "
                "driver and the executors, for example to postgresql://user@host/database."
            )
        return replace(found, names=tuple(names))

    @property
    def columns(self) -> dict[str, Column]:
        return CONSUMED if self.consume else _COLUMNS[self.source]


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


def _consumes(options: dict[str, str]) -> bool:
    mode = _choice(options, "mode", ("read", "consume"))
    consumes = mode == "consume"
    for name in _OF_A_LOG if consumes else _OF_A_QUEUE:
        if name.lower() in options:
            raise InvalidOption(f"{name} has no meaning with mode={mode}: leave it out.")
    if consumes and not (options.get("subscribe") or options.get("subscribepattern")):
        raise InvalidOption(
            "mode=consume needs the names of queues: set subscribe or subscribePattern."
        )
    return consumes


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _number(options: dict[str, str], name: str, least: int = 1) -> int | None:
    text = options.pop(name.lower(), None)
    if text is None:
        return None
    if not text.strip().isdigit() or int(text) < least:
        raise InvalidOption(f"{name} must be an integer of at least {least}, not {text!r}")
    return int(text)


def _choice(options: dict[str, str], name: str, known: Sequence[str]) -> str:
    text = options.pop(name.lower(), known[0])
    if text not in known:
        raise InvalidOption(f"{name} must be {' or '.join(known)}, not {text!r}")
    return text


def _until(text: str | None) -> Until | None:
    if text == "started" or text == "done":
        return text  # type: ignore[return-value]
    return None if text is None else _length(text, "until", "started, done or a length of time")


def _length(text: str, name: str, what: str = "a length of time") -> float:
    """Parse a length of time, such as ``15m``, into seconds."""
    length = dt.timedelta(seconds=int(text)) if text.isdecimal() else length_of(text)
    if length is None:
        raise InvalidOption(f"{name} must be {what}, such as 30s or 15m, not {text!r}")
    return length.total_seconds()


def _flag(options: dict[str, str], name: str) -> bool:
    text = options.pop(name.lower(), "true").lower()
    if text not in {"true", "false"}:
        raise InvalidOption(f"{name} must be true or false, not {text!r}")
    return text == "true"


def _offset(text: str, name: str) -> Offset | None:
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


def _moment(text: str | None) -> str | None:
    """Convert an ISO 8601 time, or milliseconds since 1970 as in Kafka, for PostgreSQL."""
    if text is None:
        return None
    if text.isdigit():
        return dt.datetime.fromtimestamp(int(text) / 1000, dt.timezone.utc).isoformat()
    try:
        return moment_of(text).isoformat()
    except ValueError as error:
        raise InvalidOption(
            f"{text!r} is not a time: write ISO 8601, or milliseconds since 1970"
        ) from error


def moment_of(text: str) -> dt.datetime:
    """Parse ISO 8601, in UTC unless it has a zone. Raises ValueError."""
    # Python 3.10 does not parse the Z.
    moment = dt.datetime.fromisoformat(text.replace("Z", "+00:00"))
    return moment if moment.tzinfo else moment.replace(tzinfo=dt.timezone.utc)
