"""Further pages that a consumer's health port serves, such as metrics."""

from __future__ import annotations

from collections.abc import Callable

#: The function of each page, by path. It returns the page's content type and text.
pages: dict[str, Callable[[], tuple[str, bytes]]] = {}
