"""Errors that are put off, so that a failure in one queue or database does not stop the others."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager


class Failures:
    """The errors of one round of a loop.

    ::

        failures = Failures()
        for alias in aliases:
            with failures.of(alias):
                work(alias)
        failures.end()
    """

    def __init__(self) -> None:
        self._errors: dict[Hashable, Exception] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self._errors

    @contextmanager
    def of(self, key: Hashable) -> Iterator[None]:
        """Note an error of the block, and go on after it."""
        try:
            yield
        except Exception as error:
            self._errors.setdefault(key, error)

    def end(self) -> None:
        """Raise the first of the errors, if there was one."""
        for error in self._errors.values():
            raise error
