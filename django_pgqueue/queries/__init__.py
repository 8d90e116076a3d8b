"""The SQL of every operation, one file each.

Values travel as ``%(name)s``. ``{message}``, ``{ready}`` and their like stand for the tables of
one queue, which only :mod:`django_pgqueue.ddl` knows how to name. What is no table's name, as
``{bodies}``, stands for a part of the text that has a file of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from importlib.resources import files

__all__ = ["Part", "fence", "load", "render"]


class Part(str):
    """The name of a file whose text stands in another's."""

    __slots__ = ()


class _Names(dict[str, object]):
    """What stands for what in a text, and in its parts."""

    def __getitem__(self, name: str) -> object:
        value = self.get(name, Part(name))
        return load(value).format_map(self).rstrip() if isinstance(value, Part) else value


@cache
def load(name: str) -> str:
    """The text of ``queries/<name>.sql``.

    >>> "SKIP LOCKED" in load("read")
    True
    """
    return files(__package__).joinpath(f"{name}.sql").read_text(encoding="utf-8")


def render(name: str, tables: Mapping[str, object]) -> str:
    """The text of an operation with the names of one queue's tables in place."""
    return _rendered(name, tuple(tables.items()))


# The few texts that a queue needs are asked for again and again, and a long one takes 10 us.
@lru_cache(maxsize=1000)
def _rendered(name: str, tables: tuple[tuple[str, object], ...]) -> str:
    return load(name).format_map(_Names(tables))


def fence(params: Mapping[str, object]) -> dict[str, str]:
    """What stands for ``{fence}``: no later delivery than the one that the receipt is of.

    ``params`` are those of :func:`django_pgqueue.arguments.fence`. Both conditions in one would
    cost a statement for one message a tenth of its time.
    """
    alike = params["receipts"] is None
    return {
        "fence": "read_ct = %(read_ct)s"
        if alike
        else "id || ':' || read_ct = ANY(%(receipts)s::text[])"
    }
