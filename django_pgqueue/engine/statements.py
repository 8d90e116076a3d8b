"""Load statements from .sql files, and fill in their placeholders.

``%(name)s`` is a parameter. ``{message}`` and ``{archive}`` are the tables of one queue, named by
:mod:`django_pgqueue.ddl`. ``{settle/fence}`` includes another file; ``{places/due}`` includes a
part of ``places.sql``, the lines after ``-- {places/due}``. In parts that several statements
include, ``{of}`` is the queue's id, or an SQL expression for it. ``{kept_columns}`` and other lists
of a message's columns are in :mod:`.columns`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib.resources import files

from django_pgqueue.engine.columns import PLACEHOLDERS
from django_pgqueue.engine.names import table_names

__all__ = ["Part", "compose", "load", "render", "unflushed"]

ENGINE = "django_pgqueue.engine"

# The comment line ``-- {name}`` that begins a part of a file.
_HEADING = re.compile(r"^-- \{([\w/]+)\}.*\n(?:--.*\n)*", re.MULTILINE)

# Values of placeholders that a caller did not name.
_DEFAULTS = {
    **PLACEHOLDERS,
    "own_transaction": "false",
    "expires_at": "",
    "expires": "",
    "admit": "",
    "most": "%(qty)s::bigint",
    "may_start": "",
    "admitted": "",
    "started": "",
    "has_groups": "",
    "rechecks": "",
    "no_leases": "",
    "dead_letter_id": "m.id",
    "dead_letter_origin": "",
    "and_leased": "",
}

# The last clause of a statement that writes and returns ids.
_RETURNED_ID = re.compile(r"(RETURNING|SELECT) id((?:, \w+)*(?: FROM \w+)?)\s*$")


class Part(str):
    """A placeholder's value: the name of a file whose text is inserted."""

    __slots__ = ()


class _Names(dict[str, object]):
    """The values of the placeholders in a text and in the files that it includes.

    A value whose key is a file's name, such as ``settle/fence``, replaces that file.
    """

    def __getitem__(self, name: str) -> object:
        value = self.get(name, Part(name)) if "/" in name else super().__getitem__(name)
        return load(value).format_map(self).rstrip() if isinstance(value, Part) else value


@cache
def load(name: str, package: str = ENGINE) -> str:
    """Read a statement, or a part of one, from a file of ``package``.

    >>> "SKIP LOCKED" in load("read/read")
    True
    >>> load("places/due")
    'vt <= statement_timestamp()'
    """
    folder, _, part = name.rpartition("/")
    file = files(package).joinpath(f"{folder}.sql")
    if not (part and file.is_file()):
        return files(package).joinpath(f"{name}.sql").read_text(encoding="utf-8")
    parts = _HEADING.split(file.read_text(encoding="utf-8"))
    return dict(zip(parts[1::2], parts[2::2], strict=True))[name].rstrip()


def compose(name: str, names: Mapping[str, object], package: str = ENGINE) -> str:
    """Load a statement with its parts, and fill in its placeholders."""
    return load(name, package).format_map(_Names(names))


@lru_cache(maxsize=4096)
def render(
    name: str,
    queue_id: int,
    names: tuple[tuple[str, object], ...] = (),
    package: str = ENGINE,
) -> str:
    """Load a statement, and fill in the tables of one queue.

    ``names`` are further placeholders as pairs (name, value), such as another queue's table. The
    statement is in ``package``; what it includes is the engine's.

    >>> "INSERT INTO pgqueue_message_q7" in render("send/send", 7)
    True
    """
    tables: Mapping[str, object] = table_names(queue_id)
    return compose(name, {**_DEFAULTS, "of": queue_id, **tables, **dict(names)}, package)


@lru_cache(maxsize=256)
def unflushed(text: str) -> str:
    """Change a statement so that it commits without waiting for the disk. If it writes, it must
    return ids.

    >>> unflushed("DELETE FROM pgqueue_ready RETURNING id").endswith("RETURNING id")
    False
    """
    return _RETURNED_ID.sub(
        r"\1 CASE set_config('synchronous_commit', 'off', true) WHEN 'off' THEN id END\2", text
    )
