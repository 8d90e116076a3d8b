"""The pages of failures: all groups, and one group with actions on its messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpResponse, HttpResponseRedirect
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue.admin.access import queues_for
from django_pgqueue.admin.bulk_actions import Action, Job, may
from django_pgqueue.admin.charts import spark_paths
from django_pgqueue.admin.failures import WINDOWS, Failures, Group, Members
from django_pgqueue.admin.page import Page
from django_pgqueue.admin.search import is_number
from django_pgqueue.queues.bulk import Kind
from django_pgqueue.templatetags.pgqueue_admin import cut

USUAL = "24h"
#: The number of groups on the list's page, and of example messages on a group's page.
SHOWN, EXAMPLES = 100, 20

# By action: the kind for dead letters, and the kind for failed messages in the archive.
ACTIONS = {"retry": (Kind.REDRIVE, Kind.REPLAY), "discard": (Kind.DELETE, Kind.DISCARD)}
WORDS = {
    "retry": (gettext_lazy("Retry"), gettext_lazy("Retry failures")),
    "discard": (gettext_lazy("Discard"), gettext_lazy("Discard failures")),
}


class _WindowPage(Page):
    """A page of failures. The URL has the window and, optionally, a queue id."""

    @property
    def window(self) -> str:
        name = self.request.GET.get("window", USUAL)
        return name if name in WINDOWS else USUAL

    @cached_property
    def source(self) -> int | None:
        given = self.request.GET.get("queue", "")
        return int(given) if is_number(given, 2**31) else None

    @cached_property
    def failures(self) -> Failures:
        return Failures.of(self.request, WINDOWS[self.window], self.source)

    @cached_property
    def names(self) -> dict[int, str]:
        return dict(queues_for(self.request).values_list("pk", "name"))

    def context(self) -> dict[str, Any]:
        """Return the values that the templates of both pages need."""
        chosen = self.window
        query = "" if self.source is None else f"&queue={self.source}"
        return {
            "window": chosen,
            "tabs": [
                (each.label, f"?window={key}{query}", key == chosen)
                for key, each in WINDOWS.items()
            ],
            "queue_name": self.names.get(self.source or 0, ""),
            # The actions that the user may take on a group's messages: name and label.
            "offers": [
                (action, WORDS[action][0])
                for action, kinds in ACTIONS.items()
                if any(may(self.request, kind) for kind in kinds)
            ],
        }


def shown_group(
    page: Page, failures: Failures, group: Group, names: Mapping[int, str]
) -> dict[str, Any]:
    """Return a group's values for the templates. ``names`` has queue names by id."""
    return {
        "group": group,
        "text": _text(group),
        "queues": ", ".join(sorted(names[pk] for pk in group.sources if pk in names)),
        "trend": spark_paths([failures.trend(group)], 80, 18)[0],
        "example": page.owner.message_link(*group.example),
    }


def _text(group: Group) -> str:
    return cut(group.line, 200) or _("no error")


class FailuresPage(_WindowPage):
    """The page of all failure groups, the largest first."""

    name = "message_failures"
    route = "failures/"
    template = "failures"

    def answer(self) -> HttpResponse:
        found = self.failures.groups(SHOWN)
        return self.render(
            {
                **self.context(),
                "title": _("Failures"),
                "is_list": True,
                "groups": [shown_group(self, self.failures, each, self.names) for each in found],
                "more": found[0].every - len(found) if found else 0,
                "sent_again": self.failures.sent_again(),
            }
        )


class FailurePage(_WindowPage):
    """The page of one failure group. A POST request asks to confirm an action, or performs it."""

    name = "message_failure"
    route = "failures/<int:kind>/"
    template = "failure"

    def answer(self, kind: int) -> HttpResponse:
        if kind >= 2**63:
            raise Http404
        found = replace(self.failures, kind=kind)
        back = self.url("message_failures", window=self.window)
        group = next(iter(found.groups(1)), None)
        if self.request.method == "POST":
            return self._act(found, group, back)
        if group is None:
            told = _("This failure is gone: its messages were sent again or deleted.")
            self.tell(told, messages.WARNING)
            return HttpResponseRedirect(back)
        return self.render(
            {
                **self.context(),
                "title": _text(group),
                **shown_group(self, found, group, self.names),
                "examples": [
                    (
                        each,
                        self.owner.message_link(each.pk, each.queue_id),
                        self.names.get(each.queue_id, ""),
                    )
                    for each in found.examples(EXAMPLES)
                ],
            }
        )

    def _act(self, found: Failures, group: Group | None, back: str) -> HttpResponse:
        action = self.request.POST.get("action", "")
        if action not in ACTIONS:
            raise Http404
        kinds = [kind for kind in ACTIONS[action] if may(self.request, kind)]
        if not kinds:
            raise PermissionDenied
        text, about = str(found.kind), ""
        if group is not None:
            text = _text(group)
            about = format_html(
                _("The error: {}, for example in message {}."),
                format_html("<code>{}</code>", text),
                self.owner.message_link(*group.example),
            )
        return Action(
            self,
            [Job(kind, Members(found, text, dead=not kind.is_of_archive)) for kind in kinds],
            back=back,
            fields={"action": action},
            title=str(WORDS[action][1]),
            about=about,
            ask=True,
        ).answer()
