"""Forms that send a message once, even if they are submitted again."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext as _

#: How many sends a session remembers, for forms that are reached by the browser's back button.
_MOST = 50
#: How long a message holds the form's token as its unique key: for requests at the same moment,
#: which do not see each other's session.
_HELD = dt.timedelta(days=1)
_SESSION = "pgqueue_sent"


class Once:
    """A submitted form, recognized by the token that ``{% once %}`` put into it.

    Without a token each submission counts.
    """

    def __init__(self, request: HttpRequest) -> None:
        self._session: Any = request.session
        self._token = request.POST.get("once", "")[:64]

    @property
    def sent(self) -> tuple[int, int] | None:
        """The queue and the message that an earlier submission sent, if there was one."""
        known = self._session.get(_SESSION, {}).get(self._token)
        return None if known is None else (int(known[0]), int(known[1]))

    @property
    def options(self) -> dict[str, Any]:
        """The options of a send that has no unique key of its own."""
        return {"unique": f"form {self._token}", "until": _HELD} if self._token else {}

    def remember(self, queue_id: int, message_id: int) -> None:
        """Remember in the session what this submission sent."""
        if self._token:
            known = {**self._session.get(_SESSION, {}), self._token: [queue_id, message_id]}
            self._session[_SESSION] = dict(list(known.items())[-_MOST:])

    @staticmethod
    def repeated(link: str) -> str:
        """Return the text about a form that was submitted before; ``link`` is of its message."""
        told = _(
            "This form was submitted before, and message {id} was sent. Nothing was sent now: open "
            "the form again to send another message."
        )
        return format_html(told, id=link)
