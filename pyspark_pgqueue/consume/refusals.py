"""Records the messages that a sink's function refuses, by their ids.

>>> def store(frame, number):
...     rows = frame.collect()
...     if wrong := {row.id: "no price" for row in rows if row.price is None}:
...         raise Refused(wrong)
...     save(rows, number)
>>> orders.writeStream.foreachBatch(each_batch(store)).start()
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import psycopg

from pyspark_pgqueue.errors import InvalidOption, Refused, in_one_line
from pyspark_pgqueue.source import database

Batch = Callable[[Any, int], Any]


def each_batch(function: Batch, url: str | None = None) -> Batch:
    """Wrap a function for ``foreachBatch`` of a stream that consumes queues.

    ``function`` takes a DataFrame with the column ``id``, and the batch's number. If it raises
    :class:`Refused`, it is called again without the refused messages. It may also return the ids
    that it refuses, or a dict of errors by id. All other messages are then done. The stream's
    option ``onError`` decides what happens to refused messages.

    If the function fails with only one message in the DataFrame, the error is kept for the dead
    letter.

    Arguments:
        url: the database of the queues; by default ``PGQUEUE_URL``.

    Raises InvalidOption without an address.
    """
    given = url or os.environ.get("PGQUEUE_URL")
    if not given:
        raise InvalidOption(
            "No database address: pass url to each_batch, or set PGQUEUE_URL in the environment."
        )
    address = database.database_url(given)

    def call(frame: Any, number: int) -> None:
        refused: dict[int, str] = {}
        while True:
            left = frame.where(~frame["id"].isin(list(refused))) if refused else frame
            try:
                told = function(left, number)
            except Refused as error:
                if error.errors.keys() <= refused.keys():
                    raise  # it refuses messages that were already left out
                _record(address, error.errors, refused=True)
                refused |= error.errors
            except Exception as error:
                _record_alone(address, left, error)
                raise
            else:
                if isinstance(told, Collection):
                    _record(address, Refused(told).errors, refused=True)
                return

    return call


def _record(url: str, errors: Mapping[int, str], *, refused: bool) -> None:
    if errors:
        with database.connect(url) as connection:
            given = [refused, list(errors), list(errors.values())]
            connection.execute(database.sql("consume/refusals/record"), given)


def _record_alone(url: str, frame: Any, error: Exception) -> None:
    """Record the error of a failed call if its DataFrame has exactly one message."""
    try:
        ids = [row.id for row in frame.select("id").head(2)]
    except Exception:
        return  # reading the frame fails, too
    if len(ids) == 1:
        _record(url, {ids[0]: in_one_line(error)}, refused=False)


# Called by the stream


def error_of(connection: psycopg.Connection[Any], message_id: int) -> str | None:
    """Return the recorded error of a message that failed alone in its batch, or None."""
    text = "SELECT error FROM pgqueue_refusal WHERE message_id = %s"
    row = connection.execute(text, [message_id]).fetchone()
    return None if row is None else str(row[0])


def acknowledged(connection: psycopg.Connection[Any], ids: Iterable[int]) -> dict[int, str]:
    """Delete the records of a batch's messages. Returns the refused messages' errors by id."""
    rows = connection.execute(database.sql("consume/refusals/acknowledged"), [list(ids)])
    return {pk: error for pk, refused, error in rows if refused}
