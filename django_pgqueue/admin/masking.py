"""Values that a page must not show: those under keys that look like a secret's."""

from __future__ import annotations

import re
from typing import Any

from django_pgqueue.conf import settings

__all__ = ["MASK", "mask", "mask_text", "unmasked"]

MASK = "•••"

# A key of JSON text with what follows it, as far as that is one value or the start of a longer one.
_PAIR = re.compile(r'"((?:[^"\\]|\\.)*)"\s*:\s*("(?:[^"\\]|\\.)*(?:"|$)|[^\s"{\[,}\]]+|[{\[])')


def mask(value: Any) -> Any:
    """The same JSON, without the values under keys that MASKED_KEYS names.

    >>> mask({"user": "ann", "db": {"Password": "x"}})
    {'user': 'ann', 'db': {'Password': '•••'}}
    """
    if isinstance(value, dict):
        return {key: MASK if _is_secret(str(key)) else mask(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [mask(inner) for inner in value]
    return value


def unmasked(edited: Any, original: Any) -> Any:
    """The same JSON with the original's values where the edited one still has the mask.

    >>> unmasked({"user": "bob", "password": "•••"}, {"user": "ann", "password": "x"})
    {'user': 'bob', 'password': 'x'}
    """
    if isinstance(edited, dict):
        known = original if isinstance(original, dict) else {}
        return {
            key: known[key] if inner == MASK and key in known else unmasked(inner, known.get(key))
            for key, inner in edited.items()
        }
    if isinstance(edited, list):
        rest = original if isinstance(original, list) else []
        return [
            unmasked(inner, rest[place] if place < len(rest) else None)
            for place, inner in enumerate(edited)
        ]
    return edited


def mask_text(text: str) -> str:
    """The same for the beginning of JSON text; it ends where a masked value is a longer one.

    >>> mask_text('{"token": "abc", "n": 1')
    '{"token": •••, "n": 1'
    >>> mask_text('{"n": 1, "secrets": ["a", "b"], "m"')
    '{"n": 1, "secrets": •••'
    """
    shown, end = [], 0
    for found in _PAIR.finditer(text):
        if not _is_secret(found[1]):
            continue
        shown.append(text[end : found.start(2)] + MASK)
        end = found.end()
        if found[2] in ("{", "["):
            return "".join(shown)
    return "".join(shown) + text[end:]


def _is_secret(key: str) -> bool:
    lowered = key.lower()
    return any(word.lower() in lowered for word in settings.MASKED_KEYS)
