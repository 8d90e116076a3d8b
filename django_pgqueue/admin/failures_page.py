"""The pages of failures: all groups, and one group with actions on its messages."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue.admin.access import queues_for
from django_pgqueue.admin.bulk_actions import Job, may, perform
from django_pgqueue.admin.failures import Failures, Group, Members
from django_pgqueue.admin.page import Page
from django_pgqueue.admin.search import LOOK
from django_pgqueue.admin.wording import counted, moment, visible
from django_pgqueue.models.bulk import Kind
from django_pgqueue.wording import age

__all__ = ["FailurePage", "FailuresPage", "offers"]

WINDOWS = {
    "1h": (dt.timedelta(hours=1), gettext_lazy("1 hour")),
    "24h": (dt.timedelta(hours=24), gettext_lazy("24 hours")),
    "7d": (dt.timedelta(days=7), gettext_lazy("7 days")),
}
USUAL = "24h"
#: How many groups a page shows.
SHOWN = 100

# For each action the kind for dead letters, and the kind for failed messages in the archive.
ACTIONS = {
    "retry": (Kind.REDRIVE, Kind.REPLAY),
    "redrive": (Kind.REDRIVE, Kind.REPLAY),
    "discard": (Kind.DELETE, Kind.DISCARD),
}


class _WindowPage(Page):
    """A page of the failures within a window, which the address names."""

    @property
    def window(self) -> str:
        name = self.request.GET.get("window", USUAL)
        return name if name in WINDOWS else USUAL

    @property
    def failures(self) -> Failures:
        return Failures.of(self.request, WINDOWS[self.window][0])

    @cached_property
    def names(self) -> dict[int, str]:
        return dict(queues_for(self.request).values_list("pk", "name"))

    def context(self) -> dict[str, Any]:
        """What both templates need."""
        chosen = self.window
        return {
            "window": chosen,
            "windows": [(key, label, key == chosen) for key, (_span, label) in WINDOWS.items()],
            "offers": offers(self.request),
        }

    def shown(self, each: Group) -> dict[str, Any]:
        """The template values of a group."""
        lasted = (each.last - each.first).total_seconds() if each.last and each.first else None
        return {
            "fingerprint": each.fingerprint,
            "text": visible(each.text) or _("no error"),
            "count": f"{each.count:,}",
            "dead": f"{each.dead:,}",
            "first": moment(each.first),
            "last": moment(each.last),
            "queues": ", ".join(sorted(self.names[pk] for pk in each.queues if pk in self.names)),
            "example": self.owner.message_link(*each.example),
            "spread": "" if lasted is None else age(lasted),
        }


class FailuresPage(_WindowPage):
    """All groups, the largest first."""

    name = "message_failures"
    route = "failures/"
    template = "failures"

    def answer(self) -> HttpResponse:
        found, sent_again = self.failures.groups()
        return self.render(
            {
                **self.context(),
                "title": _("Failures"),
                "is_list": True,
                "groups": [self.shown(each) for each in found[:SHOWN]],
                "more": max(0, len(found) - SHOWN),
                "sent_again": counted(sent_again) if sent_again else "",
                "look": f"{LOOK:,}",
            }
        )


class FailurePage(_WindowPage):
    """One group. A POST asks for confirmation of an action, then does it."""

    name = "message_failure"
    route = "failures/<str:fingerprint>/"
    template = "failure"

    def answer(self, fingerprint: str) -> HttpResponse:
        found = self.failures
        back = f"{self.url('message_failures')}?window={self.window}"
        chosen = next((each for each in found.groups()[0] if each.fingerprint == fingerprint), None)
        if self.request.method == "POST":
            return self._act(found, fingerprint, chosen, back)
        if chosen is None:
            told = _("There is no such failure any more.")
            self.owner.message_user(self.request, told, messages.WARNING)
            return HttpResponseRedirect(back)
        newest = [
            each
            for dead in (True, False)
            for each in list(found.rows(fingerprint, dead=dead))[-20:]
        ]
        return self.render(
            {
                **self.context(),
                "title": _("Failure"),
                "group": self.shown(chosen),
                "messages_of_it": [
                    self.owner.message_link(pk, queue_id) for queue_id, pk in newest[::-1]
                ],
            }
        )

    def _act(self, found: Failures, name: str, group: Group | None, back: str) -> HttpResponse:
        action = self.request.POST.get("action", "")
        if action not in ACTIONS:
            raise Http404
        kinds = [kind for kind in ACTIONS[action] if may(self.request, kind)]
        if not kinds:
            raise PermissionDenied
        text, about = name, ""
        if group is not None:
            text = group.text
            about = format_html(
                _("{}: for example message {}."),
                visible(text) or _("no error"),
                self.owner.message_link(*group.example),
            )
        titles = {
            "retry": _("Retry failures"),
            "redrive": _("Redrive failures"),
            "discard": _("Discard failures"),
        }
        return perform(
            self.owner,
            self.request,
            [Job(kind, Members(found, name, text, dead=not kind.is_of_archive)) for kind in kinds],
            back=back,
            fields={"action": action},
            title=titles[action],
            about=about,
            ask=True,
            options=action == "redrive",
        )


def offers(request: HttpRequest) -> list[tuple[str, str]]:
    """The actions that the user may take on all messages of a group."""
    words = {"retry": _("Retry"), "redrive": _("Redrive …"), "discard": _("Discard")}
    return [
        (action, words[action])
        for action, kinds in ACTIONS.items()
        if any(may(request, kind) for kind in kinds)
    ]
