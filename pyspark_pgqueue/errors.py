"""The errors that the pipeline raises on purpose.

* PipelineError
  x SparkMissing          PySpark or Java is not installed
  x ExecutorsLack         executors do not see a lake's path
  x InvalidOption         an option, a column or a schema is invalid
  x DataLost              messages were purged before a stream read them, or during a read
  x ServerChanged         a checkpoint or lake is from another server, or ahead of this server
  x TableRewritten        a table was rewritten (VACUUM FULL, CLUSTER) between plan and read
  x ReplicaLags           a replica did not catch up with the planned read
  x StagingLost           staged rows are gone, for example after a server crash
  x Refused               raised by a sink's function: it refuses messages by their ids
  x JobRunning            the same job is running elsewhere
  x Interrupted           a job was interrupted by SIGINT or SIGTERM
  x StoreFailed           a lake's disk or object store cannot be used
  x LakeDiffers           a lake's files differ from the recorded ones
"""

from __future__ import annotations

import copyreg
import re
from collections.abc import Iterable, Mapping
from typing import Any

# The last line of a traceback. Spark's errors contain the tracebacks of tasks and workers.
_RAISED = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*(\S.*)")
_OURS = "pyspark_pgqueue.errors."


class PipelineError(Exception):
    """The base class of all errors that the pipeline raises."""

    #: The exit code of a job that raises it.
    exit_code = 1

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickle the final text: some constructors compose it from other arguments.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class SparkMissing(PipelineError):
    """PySpark or a Java runtime is missing; the message says what to install."""


class ExecutorsLack(PipelineError):
    """A cluster's machines do not see a path on the driver's disk."""


class InvalidOption(PipelineError, ValueError):
    """The data source or a job cannot do what the options ask for."""


class DataLost(PipelineError):
    """Archived messages were removed before a stream delivered them, or while they were read."""

    def __init__(
        self, queue: str, *, dropped: bool = False, planned: bool = False, lake: str = ""
    ) -> None:
        """Create the error.

        Arguments:
            dropped: the queue itself was dropped.
            planned: the messages were lost during a batch read, which can be repeated.
            lake: the lake that lacks the messages.
        """
        purged = f"Archived messages of queue {queue!r} were purged"
        lost = f"Queue {queue!r} was dropped" if dropped else purged
        if planned:
            text = (
                f"{lost} after this read was planned, so its result would be incomplete. Run the "
                f"read again. If retention keeps removing messages, start later (option "
                f"startingOffsets), or set failOnDataLoss=false to read the messages that are left."
            )
        elif lake:
            text = (
                f"The lake {lake} lacks messages of queue {queue!r} that this stream has not read: "
                f"they were purged before they were exported. Set failOnDataLoss=false to continue "
                f"with the messages that are left."
            )
        else:
            them = "all of its messages" if dropped else "them"
            text = (
                f"{lost} before this stream read {them}. If a lake has them, set the option lake. "
                f"Otherwise set failOnDataLoss=false to continue with the messages that are left, "
                f"or start from a new checkpoint."
            )
        super().__init__(text)


class ServerChanged(PipelineError):
    """A checkpoint, lake, roll-up or archive is from another server, or ahead of this server."""


class TableRewritten(PipelineError):
    """The table was rewritten, so the positions planned for a read are no longer valid."""

    def __init__(self, table: str) -> None:
        super().__init__(
            f"Table {table} was rewritten or dropped during the read, for example by VACUUM FULL, "
            f"CLUSTER or retention. Run the read again."
        )


class ReplicaLags(PipelineError):
    """The replica has not replayed up to the planned position within the timeout."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"The replica did not catch up within {seconds:g} seconds. Raise replicaTimeout, or "
            f"read from the primary."
        )


class StagingLost(PipelineError):
    """Staged rows are gone: the staging table is unlogged, and a server crash empties it."""

    def __init__(self, found: int, expected: int) -> None:
        super().__init__(
            f"Nothing was sent: only {found} of {expected} staged rows are left. The server "
            f"crashed, or the rows were staged over a day ago and deleted. Run the write again."
        )


class Refused(PipelineError):
    """Raise it in a sink's function to refuse messages. Takes their ids, or a dict of errors by id.

    >>> Refused({7: "no price"}).errors, Refused([8]).errors
    ({7: 'no price'}, {8: 'refused'})
    """

    def __init__(self, messages: Mapping[int, str] | Iterable[int]) -> None:
        if not isinstance(messages, Mapping):
            messages = dict.fromkeys(messages, "refused")
        self.errors = {int(pk): str(error) for pk, error in messages.items()}
        super().__init__(
            f"The sink's function refused messages (errors by id): {self.errors}. Wrap the "
            f"function in each_batch. It must not refuse messages that it was not given."
        )


class Interrupted(PipelineError):
    """A job was interrupted; the message says what was done."""

    exit_code = 130


class JobRunning(PipelineError):
    """Another process runs this job on the same lake or the same roll-up."""


class StoreFailed(PipelineError):
    """A lake's disk or object store cannot be reached, read or written."""


class LakeDiffers(PipelineError):
    """A file of the lake is missing, or is not what its run recorded."""


def in_one_line(error: BaseException) -> str:
    """Return an error's text as one line, without the tracebacks that Spark puts into it.

    >>> in_one_line(ValueError("no such thing\\n  at line 7"))
    'ValueError: no such thing'
    """
    text = str(error).strip()
    if isinstance(error, PipelineError):
        return text
    if raised := _RAISED.findall(text):
        told = next((each for each in raised if each.startswith(_OURS)), raised[-1])
        return str(told.partition(": ")[2] if told.startswith(_OURS) else told).strip()
    first = text.partition("\n")[0].partition(" SQLSTATE: ")[0]
    is_of_psycopg = type(error).__module__.startswith("psycopg")
    if is_of_psycopg and getattr(error, "sqlstate", None) is None:
        return (
            f"No connection to the database: {first}. Check its address, and that the server is "
            f"running."
        )
    if first.startswith("["):  # a Spark error begins with its class in brackets
        return first
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
