"""A form field for JSON. It refuses JSON that PostgreSQL cannot store."""

from __future__ import annotations

import json
import re
from typing import Any

from django import forms
from django.utils.translation import gettext as _

from django_pgqueue.engine.encoding import encode

#: Matches ``\u0000``, a NUL character, unless its backslash is itself escaped.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


#: The deepest nesting of JSON in a form. Deeper JSON may exceed Python's recursion limit.
DEEPEST = 200


def is_deep(value: Any) -> bool:
    """Return whether a JSON value is nested more than ``DEEPEST`` levels deep.

    >>> is_deep([[1], {"a": []}])
    False
    """
    level: list[Any] = [[value]]
    for _depth in range(DEEPEST + 1):
        inside = (each.values() if isinstance(each, dict) else each for each in level)
        level = [inner for each in inside for inner in each if isinstance(inner, (dict, list))]
    return bool(level)


def as_jsonb(value: Any) -> str:
    """Return the JSON text of a value. Raise ValueError if PostgreSQL cannot store it as jsonb.

    >>> as_jsonb({"a": 1})
    '{"a":1}'
    >>> as_jsonb(float("inf"))
    Traceback (most recent call last):
    ValueError: ...
    """
    try:
        text = encode(value)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    text.encode()  # Half a surrogate pair raises UnicodeEncodeError, a ValueError.
    if _NUL.search(text):
        raise ValueError("PostgreSQL cannot store the character \\u0000")
    return text


class JSONText(forms.CharField):
    """A JSON field that keeps the order of keys, and shows where the JSON is invalid."""

    widget = forms.Textarea(attrs={"rows": 14, "spellcheck": "false", "class": "pgqueue-edit"})

    @staticmethod
    def shown(value: Any) -> str:
        """Return a value as text for the form; an empty text for None."""
        return "" if value is None else json.dumps(value, indent=2, ensure_ascii=False)

    def to_python(self, value: Any) -> Any:
        text = super().to_python(value)
        if not text:
            return None
        try:
            found = json.loads(text)
            if is_deep(found):
                raise self._too_deep()
            as_jsonb(found)
        except RecursionError:
            raise self._too_deep() from None
        except ValueError as error:
            raise forms.ValidationError(_("Correct the JSON: %s.") % error) from error
        return found

    @staticmethod
    def _too_deep() -> forms.ValidationError:
        told = _("Correct the JSON: it is nested more than %s levels deep. Send it with Python.")
        return forms.ValidationError(told % DEEPEST)
