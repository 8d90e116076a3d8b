"""Masks JSON values whose keys look like names of secrets."""

from __future__ import annotations

import json
import re
from typing import Any

from django_pgqueue.conf import settings

MASK = "•••"

#: Errors of ``json.loads`` for JSON that PostgreSQL accepts: deep nesting, or a huge number.
UNREADABLE = (RecursionError, ValueError)

# A key in JSON text, and its value: a whole scalar, or the opening bracket of a list or object.
_PAIR = re.compile(r'"((?:[^"\\]|\\.)*)"\s*:\s*("(?:[^"\\]|\\.)*(?:"|\\?$)|[^\s"{\[,}\]]+|[{\[])')


def mask(value: Any) -> Any:
    """Return a copy of a JSON value. Values are masked if their keys match MASKED_KEYS.

    >>> mask({"user": "ann", "db": {"Password": "x"}})
    {'user': 'ann', 'db': {'Password': '•••'}}
    """
    if isinstance(value, dict):
        return {key: MASK if is_secret(str(key)) else mask(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [mask(inner) for inner in value]
    return value


def mask_json(text: str | None) -> Any:
    """Parse and mask a JSON text. If Python cannot parse it, return the masked text.

    >>> mask_json('{"password": "x"}'), mask_json(None)
    ({'password': '•••'}, None)
    """
    try:
        return mask(json.loads(text or "null"))
    except UNREADABLE:
        return mask_text(text or "")


def unmasked(edited: Any, original: Any) -> Any:
    """Return a copy of the edited JSON, with masks replaced by the original's values.

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
    """Mask secrets in JSON text, which may be incomplete. A secret list or object ends the text.

    >>> mask_text('{"token": "abc", "n": 1')
    '{"token": •••, "n": 1'
    >>> mask_text('{"n": 1, "secrets": ["a", "b"], "m"')
    '{"n": 1, "secrets": •••'
    """
    shown, end = [], 0
    for found in _PAIR.finditer(text):
        if not is_secret(found[1]):
            continue
        shown.append(text[end : found.start(2)] + MASK)
        end = found.end()
        if found[2] in ("{", "["):
            return "".join(shown)
    return "".join(shown) + text[end:]


def is_secret(key: str) -> bool:
    """Return whether a key looks like the name of a secret.

    >>> is_secret("API-Token"), is_secret("total")
    (True, False)
    """
    lowered = key.lower()
    return any(word.lower() in lowered for word in settings.MASKED_KEYS)
