"""Further pages that a consumer's health port serves, such as metrics."""

from __future__ import annotations

from collections.abc import Callable

#: Functions that return the content type and the text of a page, by its path.
pages: dict[str, Callable[[], tuple[str, bytes]]] = {}
