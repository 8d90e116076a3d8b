"""More pages of a consumer's health port."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["pages"]

#: By path: each gives its content type and its text.
pages: dict[str, Callable[[], tuple[str, bytes]]] = {}
