"""The registry of further pages on a consumer's health port."""

from __future__ import annotations

from collections.abc import Callable

#: By path: a function that returns content type and text.
pages: dict[str, Callable[[], tuple[str, bytes]]] = {}
