"""Reads a message and the beginning of its body, and formats JSON."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from django.db.models import TextField
from django.db.models.functions import Cast, Left, Length
from django.http import HttpRequest

from django_pgqueue.admin.access import allowed
from django_pgqueue.admin.json_text import is_deep
from django_pgqueue.admin.masking import UNREADABLE, mask, mask_text
from django_pgqueue.admin.search import is_number
from django_pgqueue.models import Message, Queue
from django_pgqueue.templatetags.pgqueue_admin import EMPTY, LONGEST, preformatted, visible


def find_message(request: HttpRequest, pk: object) -> Any:
    """Find a message in the URL's queue, or else in any queue that the user may see.

    Returns None if there is no such message. The message's attribute ``text`` is the body as JSON
    text, cut after ``LONGEST`` characters. ``length`` is the length of the whole text.
    """
    if not is_number(str(pk), 2**63):
        return None
    text = Cast("body", TextField())
    rows = (
        Message.objects.using(Queue.objects.database())
        .select_related("queue")
        .defer("body", "headers")
        .annotate(text=Left(text, LONGEST), length=Length(text), told=Cast("headers", TextField()))
        .filter(pk=int(str(pk)))
    )
    seen = allowed(request)
    if seen is not None:
        rows = rows.filter(queue_id__in=list(seen))
    named = request.GET.get("queue", "")
    found: Any = rows.filter(queue_id=int(named)).first() if is_number(named, 2**31) else None
    found = found or rows.first()
    if found is not None:
        found.headers = None
        with suppress(*UNREADABLE):
            found.headers = json.loads(found.told or "null")
    return found


def task_of(message: Any) -> str:
    """Return the import path of the task that a message of :func:`find_message` runs, or ""."""
    if (message.length or 0) <= LONGEST:
        with suppress(*UNREADABLE):
            body = json.loads(message.text or "null")
            if isinstance(body, dict) and {"task", "args", "kwargs"} <= body.keys():
                return body["task"] if isinstance(body["task"], str) else ""
    return ""


def is_large(message: Any) -> bool:
    """Return whether the message is too large or too deep to edit, or Python cannot parse it.

    The message is from :func:`find_message`.
    """
    if (message.length or 0) <= LONGEST:
        with suppress(*UNREADABLE):
            return is_deep(json.loads(message.text or "null")) or is_deep(message.headers)
    return True


def pretty(text: str | None, length: int | None = None) -> str:
    """Format JSON as an indented ``<pre>`` block. Cut large texts, and mask secrets.

    ``length`` is the length of the whole text, if ``text`` is only its beginning.
    """
    if text is None:
        return EMPTY
    if (length or 0) <= LONGEST:
        with suppress(*UNREADABLE):  # If it cannot be parsed, show it unindented.
            text = json.dumps(mask(json.loads(text)), indent=2, ensure_ascii=False)
            return preformatted(text)
    return preformatted(mask_text(text), length)


def in_line(text: str, length: int) -> str:
    """Format JSON in one line. Cut it after ``length`` characters, and mask secrets.

    >>> in_line('{"token": "abc", "n": [1, 2]}', 100), in_line('{"token": "abc", "n": [1, 2]}', 20)
    ('{"token": "•••", "n": [1, 2]}', '{"token": •••, "n"…')
    """
    if len(text) > length:
        return visible(f"{mask_text(text[:length])}…")
    with suppress(*UNREADABLE):
        text = json.dumps(mask(json.loads(text)), ensure_ascii=False)
        return visible(text)
    return visible(mask_text(text))
