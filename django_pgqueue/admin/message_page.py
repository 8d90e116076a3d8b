"""The page of one message: why it is not delivered, its timeline, its facts and its actions."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpResponse, HttpResponseRedirect
from django.utils.http import urlencode
from django.utils.translation import gettext as _

from django_pgqueue.admin import places
from django_pgqueue.admin.access import allowed
from django_pgqueue.admin.audit import OPERATIONS, details, of_message
from django_pgqueue.admin.batches import batch_link
from django_pgqueue.admin.bulk_actions import may
from django_pgqueue.admin.contents import find_message, pretty, task_of
from django_pgqueue.admin.flows import flow_of
from django_pgqueue.admin.page import Page
from django_pgqueue.admin.places import Place, Standing, Surroundings
from django_pgqueue.admin.send import SendPage
from django_pgqueue.admin.subscriptions import kept_by
from django_pgqueue.admin.tasks_page import LENGTH
from django_pgqueue.admin.timeline import HEADER, DeadLetter, Event, Life, dead_letter
from django_pgqueue.admin.why import why
from django_pgqueue.models import ArchivedMessage, Attempt, AuditEntry, Message
from django_pgqueue.queues.bulk import Kind
from django_pgqueue.templatetags.pgqueue_admin import cut, visible

#: Maximum number of entries of the audit log that the page shows.
LOGGED = 20


class MessagePage(Page):
    """The page of one message, queued or archived."""

    template = "message"

    def answer(self, object_id: str) -> HttpResponse:
        if self.request.method not in ("GET", "HEAD"):
            raise PermissionDenied
        message: Any = find_message(self.request, object_id)
        if message is None:
            told = _(
                "Message %s was not found. It may have been deleted, or removed by retention."
            ) % cut(object_id, 20)
            self.tell(told, messages.WARNING)
            return HttpResponseRedirect(self.url("message_changelist"))
        using, queue = message.queue.alias, message.queue
        # Read the place before the outcome: otherwise a message archived in between has neither.
        standing = places.standing([message]).get((message.pk, queue.pk))
        outcome = ArchivedMessage.objects.using(using).filter(pk=message.pk, queue=queue).first()
        died = dead_letter(message.headers)
        holder = standing.holder if standing else None
        around = places.surroundings(message, died and died.source, holder)
        link = self.owner.message_link
        events = self._events(message, standing, outcome, died, around)
        ended = places.outcome_of(outcome.state) if outcome else None
        place = standing.place if standing else ended
        headers = _headers(message, died)
        waits = standing is not None and message.group_key is not None
        is_dead = died is not None and standing is not None and around.in_dead_letters
        return self.render(
            {
                "title": _("Message %s") % message.pk,
                "is_list": False,
                "message": message,
                "queue_link": self.owner.queue_link(queue.pk, queue),
                "state": _("dead letter") if is_dead else place,
                "look": "bad" if is_dead else place.look if place else "",
                "is_dead": is_dead,
                "why": list(why(message, standing, around, link, is_dead)) if standing else [],
                "failures": ""
                if around.kind is None
                else self.url("message_failure", around.kind, window="7d"),
                "events": events,
                # The index of the last event with a traceback. This event is shown open.
                "opened": max((n for n, each in enumerate(events) if each.traceback), default=None),
                "body": pretty(message.text, message.length),
                "headers": headers and pretty(headers),
                "result": outcome
                and outcome.result is not None
                and pretty(json.dumps(outcome.result)),
                "stored": standing or outcome,
                "sent_at": (is_dead and died and died.sent_at) or message.enqueued_at,
                "group_url": self.url("queue_group", queue.pk, key=message.group_key or "")
                or self.url("message_changelist", queue=queue.pk, group=message.group_key or ""),
                "task": (task := task_of(message)),
                "task_url": self.url("queue_tasks", queue.pk, task=task[:LENGTH]),
                "batch": batch_link(self, message.headers),
                "died": died,
                "source": died and died.source and self._source(died.source, around),
                "neighbours": self._neighbours(message, around) if waits else [],
                "kept_by": kept_by(message, link, allowed(self.request)),
                "log": self._log(message),
                **self._offers(message, standing, died),
            }
        )

    def _events(
        self,
        message: Message,
        standing: Standing | None,
        outcome: ArchivedMessage | None,
        died: DeadLetter | None,
        around: Surroundings,
    ) -> list[Event]:
        """Return the events of the message's timeline."""
        attempts = Attempt.objects.of(message.pk, message.queue, using=message.queue.alias)
        flow = flow_of(message, around.source_id, allowed(self.request))
        link = self.owner.message_link
        return Life(message, standing, outcome, died, attempts, flow, around, link).events()

    def _source(self, name: str, around: Surroundings) -> str:
        """Return the queue that a dead letter came from, as a link if the user may see it."""
        seen = allowed(self.request)
        if around.source_id is None or (seen is not None and around.source_id not in seen):
            return visible(name)
        return str(self.owner.queue_link(around.source_id, name))

    def _neighbours(
        self, message: Message, around: Surroundings
    ) -> list[tuple[str, list[str], bool]]:
        """Return (name, links, has more) for the group's messages before and behind this one."""
        first = [around.head] if around.head not in (None, message.pk) else []
        before = first + [pk for pk in around.before if pk not in first]
        after = [pk for pk in around.after if pk != around.head]
        return [
            (name, [self.owner.message_link(pk, message.queue_id) for pk in ids], more)
            for name, ids, more in (
                (_("before"), before, False),
                (_("behind"), after, around.more),
            )
        ]

    def _log(self, message: Message) -> list[tuple[AuditEntry, str, str]]:
        """Return the newest entries of the audit log about a message, with their details."""
        entries = of_message(message.pk, message.queue_id)[:LOGGED]
        return [
            (
                entry,
                str(OPERATIONS.get(entry.operation, entry.operation)),
                details(entry, self.owner),
            )
            for entry in entries
        ]

    def _offers(
        self, message: Message, standing: Standing | None, died: DeadLetter | None
    ) -> dict[str, Any]:
        """Return the template's values for buttons. ``final`` deletes, ``offers`` do not."""
        place = standing.place if standing else None
        is_held = place is Place.IN_FLIGHT
        offers: list[tuple[Kind, str, str]] = []
        if standing is None:
            offers.append((Kind.REPLAY, _("Send again"), "main"))
            final = Kind.DISCARD, _("Discard")
        else:
            if place is Place.DELAYED:
                label = _("Retry now") if standing.read_ct else _("Deliver now")
                offers.append((Kind.READABLE, label, "main"))
            elif is_held:
                offers.append((Kind.READABLE, _("End its lease"), ""))
            if died is not None and not is_held:
                offers.append((Kind.REDRIVE, _("Redrive"), "main"))
            offers.append((Kind.CANCEL, _("Cancel"), ""))
            final = Kind.DELETE, _("Delete")
        return {
            "final": final if may(self.request, final[0]) else None,
            "offers": [offer for offer in offers if may(self.request, offer[0])],
            "is_held": is_held,
            "query": urlencode({"q": message.pk, "queue": message.queue_id}),
            "copy_url": SendPage.permits(self.owner, self.request)
            and self.url("queue_send", message.queue_id, copy=message.pk),
        }


def _headers(message: Any, died: DeadLetter | None) -> str | None:
    """Return the headers as JSON, without the dead-letter header if the timeline shows it."""
    headers: str | None = message.told
    if died is not None and died.source and died.died_at:
        others = {key: value for key, value in message.headers.items() if key != HEADER}
        headers = json.dumps(others) if others else None
    return headers
