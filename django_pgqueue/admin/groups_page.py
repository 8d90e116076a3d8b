"""The pages of groups: a queue's groups, one group, and the actions on it."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.http import Http404, HttpResponse, HttpResponseRedirect
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue.admin import places
from django_pgqueue.admin.bulk_actions import WORDS, Action, Job, may
from django_pgqueue.admin.groups import (
    CHOICES,
    MOST_COUNTED,
    Group,
    GroupBacklog,
    Groups,
    group_of,
    groups_of,
    line_of,
)
from django_pgqueue.admin.messages_page import PREVIEW, SMALL, Listed, read
from django_pgqueue.admin.page import QueuePage
from django_pgqueue.admin.places import Place
from django_pgqueue.admin.queue_actions import PausePage
from django_pgqueue.admin.search import Found, is_number
from django_pgqueue.admin.why import REASONS
from django_pgqueue.engine import arguments
from django_pgqueue.errors import InvalidArgument, error_line
from django_pgqueue.models import BoundGroup, Message, Queue
from django_pgqueue.queues.bound import bound_to
from django_pgqueue.queues.bulk import Kind
from django_pgqueue.templatetags.pgqueue_admin import cut, number, rate_text

#: How many characters of a group's key a title and a text show.
SHOWN = 80
_HIGHEST = 2**63


class GroupForm(forms.Form):
    """The settings of a group. Empty fields mean the queue's settings."""

    limit = forms.IntegerField(required=False, label=gettext_lazy("Limit"))
    rate = forms.CharField(required=False, label=gettext_lazy("Rate"), max_length=20)
    burst = forms.IntegerField(required=False, label=gettext_lazy("Burst"))


class GroupsPage(QueuePage):
    """The groups of a queue: paused and blocked ones first, then those with most messages."""

    name = "queue_groups"
    route = "<int:pk>/groups/"
    template = "groups"

    def answer(self, pk: int) -> HttpResponse:
        queue, given = self.queue(pk), self.request.GET
        if key := given.get("key"):
            return HttpResponseRedirect(self.url("queue_group", pk, key=key))
        only = given.get("only", "") if given.get("only") in CHOICES else ""
        skip = int(given["skip"]) if is_number(given.get("skip", ""), 10**6) else 0
        length = self.owner.list_per_page
        found = groups_of(queue, length, self.owner.message_link, only=only, skip=skip)
        here = {"only": only} if only else {}
        return self.render_live(
            {
                "title": _("Groups of %s") % queue,
                "is_list": False,
                "queue": queue,
                "queue_link": self.owner.queue_link(pk, queue),
                "tabs": [
                    (name, f"?{urlencode({'only': each})}" if each else "?", each == only)
                    for each, (name, _condition) in CHOICES.items()
                ],
                "first": f"?{urlencode(here)}" if skip else "",
                "next": f"?{urlencode({**here, 'skip': skip + length})}" if found.more else "",
                **listed(found),
                "may_pause": self.may(GroupPausePage),
                "back": self.request.get_full_path(),
            }
        )


def listed(found: Groups) -> dict[str, Any]:
    """Return the values that the template ``group_rows`` needs."""
    return {
        "groups": [(each, f"?{urlencode({'key': each.key})}") for each in found.rows],
        "groups_number": number(found.every) + ("" if found.whole else "+"),
        "groups_counted": found.counted,
        "groups_whole": found.whole,
    }


class _GroupPage(QueuePage):
    """A page of one group. Its key is in the query, since a path cannot hold every key."""

    def key(self) -> str:
        """Return the group's key. Raise Http404 for a text that cannot be one."""
        try:
            return arguments.group(self.request.POST.get("key") or self.request.GET.get("key"))
        except InvalidArgument:
            raise Http404(_("A group's key has 1 to 255 characters, without NUL.")) from None

    def group_url(self, pk: int, key: str) -> str:
        return self.url("queue_group", pk, key=key)

    def group(self, queue: Queue, key: str) -> BoundGroup:
        return bound_to(queue).group(key)


class GroupPage(_GroupPage):
    """One group: its state, its settings and its messages, in order."""

    name = "queue_group"
    route = "<int:pk>/group/"
    template = "group"

    def answer(self, pk: int) -> HttpResponse:
        queue = self.queue(pk)
        try:
            key = self.key()
        except Http404 as error:
            self.tell(str(error), messages.WARNING)
            return HttpResponseRedirect(self.url("queue_groups", pk))
        given, length = self.request.GET, self.owner.list_per_page
        skip, after = (
            int(given[name]) if is_number(given.get(name, ""), _HIGHEST) else 0
            for name in ("skip", "after")
        )
        line = line_of(queue, key, after=after, most=length + 1)
        group = group_of(
            queue, key, line, self.group(queue, key).settings(), self.owner.message_link
        )
        rest = [*line.left[skip:], *line.waiting]
        shown, more = rest[:length], len(rest) > length
        passed = min(length, max(0, len(line.left) - skip))
        last = shown[-1] if len(shown) > passed else after
        sees_messages = self._sees_messages()
        more_wait = line.number_waiting > MOST_COUNTED
        return self.render_live(
            {
                "title": _("Group %(group)s of %(queue)s")
                % {"group": cut(key, SHOWN), "queue": queue},
                "is_list": False,
                "queue": queue,
                "key": key,
                "queue_link": self.owner.queue_link(pk, queue),
                "groups_url": self.url("queue_groups", pk),
                "group": group,
                "error": cut(error_line(line.error or ""), 200),
                "number": number(min(group.number, MOST_COUNTED) if more_wait else group.number)
                + ("+" if more_wait or not line.whole else ""),
                "waiting": f"{number(MOST_COUNTED)}+" if more_wait else number(line.number_waiting),
                "whole": line.whole,
                **self._settings(queue, group),
                "rows": self._rows(queue, shown),
                "sees_messages": sees_messages,
                "first": self.group_url(pk, key) if skip or after else "",
                "next": self.url("queue_group", pk, key=key, skip=skip + passed, after=last)
                if more
                else "",
                "may_pause": self.may(GroupPausePage),
                "may_change": self.may(GroupSettingsPage),
                "form": GroupForm(
                    initial={"limit": group.limit, "rate": group.rate, "burst": group.burst},
                    label_suffix="",
                ),
                "cancel_url": self.url("queue_group_cancel", pk, key=key)
                if group.number and may(self.request, Kind.CANCEL)
                else "",
                "messages_url": self.url("message_changelist", queue=pk, group=key)
                if sees_messages
                else "",
                "back": self.request.get_full_path(),
            }
        )

    def _sees_messages(self) -> bool:
        """Whether the user may see bodies and the list of messages."""
        site = self.owner.admin_site
        return bool(
            site.is_registered(Message)
            and site.get_model_admin(Message).has_view_permission(self.request)
        )

    def _rows(self, queue: Queue, ids: list[int]) -> list[Listed]:
        """Return the messages that are still in the queue, with the reasons why they wait.

        That they wait behind others of the group is what the list shows.
        """
        rows = read([Found(queue.pk, "", pk) for pk in ids], SMALL, PREVIEW + 1)
        rows = [row for row in rows if row.standing is not None]
        waiting = [row for row in rows if row.place is not Place.IN_FLIGHT]
        reasons = {
            pk: reason
            for (pk, _queue), reason in places.reasons(waiting).items()
            if reason != "group"
        }
        return [row._replace(reason=REASONS.get(reasons.get(row.pk) or "", "")) for row in rows]

    @staticmethod
    def _settings(queue: Queue, group: Group) -> dict[str, Any]:
        """Return the group's limit and rate as text, and whether these are its own."""
        limit = group.limit or queue.group_limit
        rate = (group.rate or queue.group_rate) if queue.group_rate else None
        burst = group.burst if group.rate else queue.group_burst
        in_order = rate is None and (limit or 1) == 1
        return {
            "limit_text": _("1, in order") if in_order else number(limit) if limit else "",
            "rate_text": rate_text(rate)
            + (f", {_('burst')} {number(burst)}" if rate and burst else ""),
        }


class GroupPausePage(_GroupPage, PausePage):
    """Pauses a group. Accepts only POST requests."""

    name = "queue_group_pause"
    route = "<int:pk>/group/pause/"

    def answer(self, pk: int) -> HttpResponse:
        queue, key = self.queue(pk), self.key()
        group, told = self.group(queue, key), cut(key, SHOWN)
        if self.paused:
            group.pause()
            self.tell(_("Paused group %s: its messages are not delivered.") % told)
        else:
            group.resume()
            self.tell(_("Resumed group %s.") % told)
        return HttpResponseRedirect(self._back() or self.group_url(pk, key))


class GroupResumePage(GroupPausePage):
    """Resumes a group."""

    name = "queue_group_resume"
    route = "<int:pk>/group/resume/"
    paused = False


class GroupSettingsPage(_GroupPage):
    """Changes the limit and the rate of a group."""

    name = "queue_group_settings"
    route = "<int:pk>/group/settings/"
    permission = "change_queue"
    is_post = True

    def answer(self, pk: int) -> HttpResponse:
        queue, key = self.queue(pk), self.key()
        group, form = self.group(queue, key), GroupForm(self.request.POST)
        try:
            if not form.is_valid():
                raise InvalidArgument(
                    "; ".join(str(text) for told in form.errors.values() for text in told)
                )
            given = form.cleaned_data
            group.limits(limit=given["limit"], rate=given["rate"] or None, burst=given["burst"])
        except InvalidArgument as error:
            self.tell(str(error), messages.ERROR)
            return HttpResponseRedirect(self.group_url(pk, key))
        self.tell(_("The settings of group %s were changed.") % cut(key, SHOWN))
        return HttpResponseRedirect(self.group_url(pk, key))


class GroupCancelPage(_GroupPage):
    """Asks for confirmation, then cancels all messages of a group."""

    name = "queue_group_cancel"
    route = "<int:pk>/group/cancel/"
    permission = WORDS[Kind.CANCEL].permission

    def answer(self, pk: int) -> HttpResponse:
        queue, key = self.queue(pk), self.key()
        return Action(
            self,
            [Job(Kind.CANCEL, GroupBacklog(queue.pk, key))],
            back=self.group_url(pk, key),
            fields={"key": key},
            title=_("Cancel the messages of group %s") % cut(key, SHOWN),
            about=_("Of group %s only. Pause the group first, so that none of them starts.")
            % cut(key, SHOWN),
            ask=True,
        ).answer()
