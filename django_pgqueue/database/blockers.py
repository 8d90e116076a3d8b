"""Sessions that block others, for the admin and the doctor."""

from __future__ import annotations

import re
from typing import NamedTuple

from django.db import connections

from django_pgqueue.engine.statements import load

#: A literal, even one that the server cut off: a string, or a text in dollars.
_LITERAL = re.compile(r"'(?:[^']|'')*(?:'|\Z)|\$(\w*)\$.*?(?:\$\1\$|\Z)", re.DOTALL)
_LONGEST = 300


class Blocker(NamedTuple):
    """A session that holds a lock for which others wait."""

    pid: int
    user: str
    application: str
    state: str
    seconds: float  # The age of its transaction.
    statement: str  # Its last statement, without literals.
    waiting: int  # The number of sessions that wait for it.
    tables: list[str]  # Our tables that it has locked.


def blockers(alias: str) -> list[Blocker]:
    """Return the sessions that block others, the one with most waiting sessions first.

    Waits for no lock itself.
    """
    with connections[alias].cursor() as cursor:
        cursor.execute(load("blockers", __package__))
        found = [Blocker(*row) for row in cursor.fetchall()]
    return [each._replace(statement=without_literals(each.statement)) for each in found]


def without_literals(statement: str) -> str:
    """Return a statement in one line without the texts in it, which may be secret.

    >>> without_literals("UPDATE t SET a = 'it''s',  b = $x$secret$x$ WHERE c = 'cut")
    "UPDATE t SET a = '…', b = '…' WHERE c = '…'"
    """
    text = " ".join(_LITERAL.sub("'…'", statement or "").split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
