"""The errors that the pipeline raises on purpose.

* PipelineError
  x SparkMissing          PySpark or Java is not there
  x ExecutorsLack         executors have no package, driver or path that they need
  x InvalidOption         an option, a column or a schema that the data source cannot work with
  x DataLost              messages were purged before a stream, or while a read, had them
  x ServerChanged         a checkpoint or a lake belongs to another server, or to its future
  x TableRewritten        a table was rewritten (VACUUM FULL, CLUSTER) between plan and read
  x ReplicaLags           a replica did not catch up with what is to be read
  x StagingLost           staged rows are gone, as after a crash of the server
  x JobRunning            the same job is running elsewhere
  x LakeDiffers           files of the lake are not what was recorded
"""

from __future__ import annotations

import copyreg
from typing import Any

__all__ = [
    "DataLost",
    "ExecutorsLack",
    "InvalidOption",
    "JobRunning",
    "LakeDiffers",
    "PipelineError",
    "ReplicaLags",
    "ServerChanged",
    "SparkMissing",
    "StagingLost",
    "TableRewritten",
]


class PipelineError(Exception):
    """The root: catch it to catch what the pipeline raises."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickled with its text: some errors write it themselves, from other arguments.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class SparkMissing(PipelineError):
    """PySpark or a Java runtime is missing; the message says what to install."""


class ExecutorsLack(PipelineError):
    """The machines of a cluster lack this package, its drivers, or a path of the driver's disk."""


class InvalidOption(PipelineError, ValueError):
    """The data source or a job was asked for something that it cannot do."""


class DataLost(PipelineError):
    """Archived messages were removed before a stream delivered them, or while they were read."""

    def __init__(self, queue: str, *, dropped: bool = False) -> None:
        """``dropped`` says that the whole queue is gone."""
        how = "was dropped" if dropped else "lost archived messages that were purged"
        super().__init__(
            f"Queue {queue!r} {how} before this stream read them all. Set failOnDataLoss=false to "
            f"go on with what is left, or start from a new checkpoint."
        )

    @classmethod
    def while_reading(cls, queue: str, *, dropped: bool = False) -> DataLost:
        """Of a batch read, which can be made again."""
        how = "Queue {!r} was dropped" if dropped else "Archived messages of queue {!r} were purged"
        error = cls.__new__(cls)
        PipelineError.__init__(
            error,
            f"{how.format(queue)} after this read was planned, so that it would miss some. Run the "
            f"read again; where retention is always at work, start behind it (startingOffsets), "
            f"or set failOnDataLoss=false to take what is left.",
        )
        return error


class ServerChanged(PipelineError):
    """A checkpoint, a lake or a roll-up was made with another server, or with a later state of
    this one; or the archive itself is of another server."""


class TableRewritten(PipelineError):
    """Positions planned for a read mean nothing any more."""

    def __init__(self, table: str) -> None:
        super().__init__(
            f"{table} was rewritten while it was read, as by VACUUM FULL, CLUSTER or a retention "
            f"that dropped it. Run the read again."
        )


class ReplicaLags(PipelineError):
    """The replica that a task reads from has not yet replayed what the driver planned to read."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"The replica did not catch up within {seconds:g} seconds. Raise replicaTimeout, or "
            f"read from the primary."
        )


class StagingLost(PipelineError):
    """Staged rows are gone: staging is unlogged, and a crash of the server empties it."""

    def __init__(self, found: int, expected: int) -> None:
        super().__init__(
            f"{found} of {expected} staged rows are left, so nothing was sent. The server "
            f"crashed, or the janitor removed rows staged long ago. Run the write again."
        )


class JobRunning(PipelineError):
    """Another process runs this job on the same lake, or the same roll-up."""


class LakeDiffers(PipelineError):
    """A file of the lake is missing, or is not what its run recorded."""
