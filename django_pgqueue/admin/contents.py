"""Body and headers of a message on a page. Large bodies are cut, and secrets masked."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, NamedTuple

from django.db.models import TextField
from django.db.models.functions import Cast, Left, Length

from django_pgqueue.admin.masking import mask_text
from django_pgqueue.admin.wording import EMPTY, LONGEST, preformatted, pretty_json
from django_pgqueue.models import Message

__all__ = ["Contents"]


class Contents(NamedTuple):
    """The headers and the body of a message."""

    headers: Any
    text: str | None
    length: int

    @classmethod
    def of(cls, pk: int, queue_id: int, *, using: str | None) -> Contents:
        """Read the headers, and at most the first ``LONGEST`` characters of the body."""
        text = Cast("body", TextField())
        found = (
            Message.objects.using(using)
            .filter(pk=pk, queue_id=queue_id)
            .values_list("headers", Left(text, LONGEST), Length(text))
            .first()
        )
        return cls(*(found or (None, None, 0)))

    @property
    def body(self) -> str:
        """The body as a ``<pre>`` block."""
        if self.text is None:
            return EMPTY
        if self.length <= LONGEST:
            with suppress(RecursionError):  # nested too deeply: show it unformatted
                return pretty_json(json.loads(self.text))
        return preformatted(mask_text(self.text), self.length)
