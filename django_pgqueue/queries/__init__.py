"""The SQL of every operation, one file each.

Values travel as ``%(name)s``. ``{message}``, ``{ready}`` and their like stand for the tables of
one queue, which only :mod:`django_pgqueue.ddl` knows how to name.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files

__all__ = ["load", "render"]


@cache
def load(name: str) -> str:
    """The text of ``queries/<name>.sql``.

    >>> "SKIP LOCKED" in load("read")
    True
    """
    return files(__package__).joinpath(f"{name}.sql").read_text(encoding="utf-8")


def render(name: str, tables: Mapping[str, object]) -> str:
    """The text of an operation with the names of one queue's tables in place."""
    return load(name).format_map(tables)
