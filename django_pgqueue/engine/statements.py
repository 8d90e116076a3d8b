"""The text of each statement: one .sql file, named by its folder, with the queue's tables in place.

Values travel as ``%(name)s``. ``{message}``, ``{ready}`` and their like are the tables of one
queue, which only :mod:`django_pgqueue.ddl` knows how to name. ``{settle/fence}`` is the text of
another file.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from importlib.resources import files

from django_pgqueue import ddl

__all__ = ["Part", "compose", "load", "render"]

ENGINE = "django_pgqueue.engine"


class Part(str):
    """A name that stands for the text of a file."""

    __slots__ = ()


class _Names(dict[str, object]):
    """The values of the names in a text, and in the files that are parts of it."""

    def __getitem__(self, name: str) -> object:
        value = Part(name) if "/" in name else super().__getitem__(name)
        return load(value).format_map(self).rstrip() if isinstance(value, Part) else value


@cache
def load(name: str, package: str = ENGINE) -> str:
    """The text of a statement as it is written; ``package`` has the file.

    >>> "SKIP LOCKED" in load("read/read")
    True
    """
    return files(package).joinpath(f"{name}.sql").read_text(encoding="utf-8")


def compose(name: str, names: Mapping[str, object]) -> str:
    """The text of a statement, and of its parts, with these names in place."""
    return load(name).format_map(_Names(names))


@lru_cache(maxsize=4096)
def render(
    name: str,
    queue_id: int,
    unlogged: bool,
    names: tuple[tuple[str, object], ...] = (),
) -> str:
    """The text of a statement with the names of one queue's tables in place.

    ``names`` are further names of the text, as pairs: those of another queue's tables.

    >>> "INSERT INTO pgqueue_message_q7" in render("send/send", 7, False)
    True
    """
    tables: Mapping[str, object] = ddl.table_names(queue_id, unlogged=unlogged)
    return compose(name, {**tables, **dict(names)})
