"""The page of consumer processes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from django.db.models import F
from django.http import HttpResponse
from django.utils.translation import gettext as _

from django_pgqueue.admin import places
from django_pgqueue.admin.access import allowed
from django_pgqueue.admin.overview import DEAD_AFTER, seconds_since
from django_pgqueue.admin.page import Page
from django_pgqueue.admin.wording import moment
from django_pgqueue.models import Message, Process, Queue
from django_pgqueue.wording import age

__all__ = ["ConsumersPage"]

#: Maximum number of running messages that are looked up, over all consumers.
IN_HAND = 500


@dataclass
class Held:
    """A message that a consumer works on."""

    pk: int
    link: str
    queue: str
    age: str


@dataclass
class Consumer:
    """A row of the page."""

    process: Process
    look: str
    status: str
    heartbeat: str
    started: str
    queues: list[str]
    held: list[Held]


class ConsumersPage(Page):
    """The list of consumers: the oldest heartbeat first, and those that died last."""

    name = "process_changelist"
    template = "consumers"

    def answer(self) -> HttpResponse:
        processes = list(
            self.owner.get_queryset(self.request).order_by(
                F("gone_at").desc(nulls_first=True), "heartbeat_at"
            )
        )
        seen = allowed(self.request)
        held = self._in_hand(processes, seen)
        rows = [self._row(process, held, seen) for process in processes]
        context = {"title": _("Consumers"), "rows": rows}
        return self.render_live(context)

    def _row(
        self, process: Process, held: dict[int, Held], seen: dict[int, str] | None
    ) -> Consumer:
        silent = seconds_since(process.heartbeat_at)
        look, status = "", _("running")
        if process.gone_at is not None:
            look, status = "bad", _("gone at %s") % moment(process.gone_at)
        elif silent > DEAD_AFTER:
            look, status = "bad", _("no heartbeat")
        elif process.stopping:
            look, status = "quiet", _("stopping")
        names = set(seen.values()) if seen is not None else set(process.queues)
        return Consumer(
            process,
            look,
            status,
            _("%s ago") % age(silent),
            moment(process.started_at),
            [name for name in process.queues if name in names],
            [held[pk] for pk in _ids(process) if pk in held],
        )

    def _in_hand(
        self, processes: Iterable[Process], seen: dict[int, str] | None
    ) -> dict[int, Held]:
        """The messages that these processes work on, by id."""
        chosen = {pk for process in processes for pk in _ids(process)}
        names = {name for process in processes for name in process.queues}
        queues = Queue.objects.filter(name__in=names)
        if seen is not None:
            queues = queues.filter(pk__in=list(seen))
        by_id = {queue.pk: queue for queue in queues}
        messages = list(
            Message.objects.filter(pk__in=sorted(chosen)[:IN_HAND], queue_id__in=list(by_id)).only(
                "pk", "queue_id", "priority", "group_key"
            )
        )
        if not messages:
            return {}
        standing = places.standing(messages, using=Queue.objects.database())
        found = {}
        for message in messages:
            stands = standing.get(message.pk)
            if stands is None:  # settled meanwhile
                continue
            read_at = stands.last_read_at
            found[message.pk] = Held(
                message.pk,
                self.owner.message_link(message.pk, message.queue_id),
                by_id[message.queue_id].name,
                age(seconds_since(read_at)) if read_at else "",
            )
        return found


def _ids(process: Process) -> list[int]:
    """The message ids in a process's ``working_on``, which may be malformed."""
    told = process.working_on
    lists = told.values() if isinstance(told, dict) else []
    return [pk for ids in lists if isinstance(ids, list) for pk in ids if isinstance(pk, int)]
