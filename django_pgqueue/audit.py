"""Who acts: the name that operations are recorded with in the audit log.

The log has an entry for each purge, redrive and replay, and for each change of queues, groups,
schedules and topics. The admin, the management commands and code all write it
(:class:`~django_pgqueue.models.AuditEntry`). Without :func:`acting_as` the name is that of the
operating system's user::

    with acting_as("deploy 42"):
        queue("orders").purge()
"""

from __future__ import annotations

import getpass
import json
import os
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import PurePath
from typing import Any, NamedTuple

from django_pgqueue.errors import InvalidArgument

__all__ = ["acting_as"]

_LONGEST = 255
#: Characters that PostgreSQL cannot store: NUL, and half a surrogate pair.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


class Actor(NamedTuple):
    """Who acts, and from where: "admin", "command" or "code", in which program on which host."""

    who: str
    place: str
    program: str
    host: str

    def as_json(self) -> str:
        return json.dumps(self._asdict())


#: The actor, if it is given: by acting_as(), the admin or a command.
GIVEN: ContextVar[Actor | None] = ContextVar("pgqueue_actor", default=None)


@contextmanager
def acting_as(who: str, *, place: str | None = None, program: str | None = None) -> Iterator[None]:
    """Record the operations of the block with this name, in this thread or async task.

    In the block, messages that are archived, cancelled, deleted or made readable by their ids are
    recorded too. Elsewhere that is the daily work of consumers and is not recorded.

    Arguments:
        who: up to 255 characters, such as a user's name or that of a deployment.
        place: "admin", "command" or "code"; None: as outside the block.
        program: the program's name; None: as outside the block.

    >>> with acting_as("ann"):
    ...     queue("orders.dead").redrive()
    3

    Raises InvalidArgument.
    """
    given: Any = who
    if not isinstance(given, str) or not 0 < len(given) <= _LONGEST or _UNSTORABLE.search(given):
        raise InvalidArgument(f"who must be a text of 1 to {_LONGEST} characters, not {who!r}")
    known = actor()
    token = GIVEN.set(Actor(who, place or known.place, program or known.program, known.host))
    try:
        yield
    finally:
        GIVEN.reset(token)


def actor() -> Actor:
    """Return the actor of the current context: the given one, or else this process."""
    given = GIVEN.get()
    return _process(os.getpid()) if given is None else given


@cache
def _process(pid: int) -> Actor:
    script = PurePath(*sys.argv[:1])
    is_django = script.parts[-2:] == ("django", "__main__.py")
    # A command's name, without its arguments, which may be secret.
    if (is_django or script.name in ("manage.py", "django-admin")) and len(sys.argv) > 1:
        return Actor(_user(), "command", sys.argv[1], socket.gethostname())
    name = script.parent.name if script.name == "__main__.py" else script.name
    return Actor(_user(), "code", name or "python", socket.gethostname())


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return f"uid {os.getuid()}"
