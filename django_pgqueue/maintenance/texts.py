"""The SQL of this folder, one file a statement."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

__all__ = ["text"]


@cache
def text(name: str) -> str:
    """The text of ``<name>.sql``: values as ``%(name)s``, a queue's tables as ``{message}``.

    >>> "archived_at" in text("expire")
    True
    """
    return files(__package__).joinpath(f"{name}.sql").read_text(encoding="utf-8")
