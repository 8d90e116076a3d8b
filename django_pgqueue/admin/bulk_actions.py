"""Actions on messages: in one transaction for few messages, in steps for more.

A *question* is the confirmation page, an *answer* its submitted form. An answer acts once: a
double click or a form that is sent again does nothing. An action on more than ``AT_ONCE`` messages,
or with a rate, is a bulk action: the request commits it, then runs its first steps. If a step
fails, the bulk action's page shows the error.
"""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.db import Error, connections, transaction
from django.db.models import Q
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.functional import cached_property
from django.utils.html import format_html, format_html_join
from django.utils.timezone import now
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue import signals
from django_pgqueue.admin.access import queues_for
from django_pgqueue.admin.page import Page
from django_pgqueue.admin.search import Extent, Targets
from django_pgqueue.engine.audit.entry import ids_of, record
from django_pgqueue.engine.times import server_time
from django_pgqueue.errors import PgQueueError
from django_pgqueue.maintenance.round import is_lost
from django_pgqueue.models import BulkAction, Message, Queue
from django_pgqueue.queues.bulk import Kind
from django_pgqueue.templatetags.pgqueue_admin import counted, cut, moment, number

#: An action on more messages than this is a bulk action.
AT_ONCE = 50
NOT_TYPED = gettext_lazy("Nothing was changed: type the name of the queue to confirm.")
#: The confirmation page warns of identical bulk actions that are younger than this.
RECENT = dt.timedelta(hours=1)
#: Seconds that a request spends on steps when it starts a bulk action or refreshes its page.
SECONDS = 1.0
#: Maximum number of queues that a question names.
NAMED = 5

STATES = {
    BulkAction.RUNNING: gettext_lazy("running"),
    BulkAction.STOPPED: gettext_lazy("stopped"),
    BulkAction.DONE: gettext_lazy("done"),
    BulkAction.FAILED: gettext_lazy("failed"),
}


class Words(NamedTuple):
    """The texts of an action, and the permission that it requires."""

    title: Any
    question: Any
    done: Any
    permission: str
    is_final: bool = False


WORDS = {
    Kind.READABLE: Words(
        gettext_lazy("Make readable now"),
        gettext_lazy("Make %(messages)s of %(queues)s readable now?"),
        gettext_lazy("made readable"),
        "settle_message",
    ),
    Kind.REDRIVE: Words(
        gettext_lazy("Redrive"),
        gettext_lazy(
            "Send %(messages)s of %(queues)s back to the queues where they failed? "
            "Messages in flight are not sent."
        ),
        gettext_lazy("redriven"),
        "redrive_message",
    ),
    Kind.CANCEL: Words(
        gettext_lazy("Cancel"),
        gettext_lazy("Cancel %(messages)s of %(queues)s? The archive keeps them, with your name."),
        gettext_lazy("cancelled"),
        "settle_message",
    ),
    Kind.DELETE: Words(
        gettext_lazy("Delete"),
        gettext_lazy("Delete %(messages)s of %(queues)s for good, with their bodies?"),
        gettext_lazy("deleted"),
        "delete_message",
        is_final=True,
    ),
    Kind.PURGE: Words(
        gettext_lazy("Purge"),
        gettext_lazy("Delete the %(messages)s in %(queues)s? The archive stays."),
        gettext_lazy("purged"),
        "purge_queue",
        is_final=True,
    ),
    Kind.REPLAY: Words(
        gettext_lazy("Send again"),
        gettext_lazy("Send %(messages)s of %(queues)s again, as new messages?"),
        gettext_lazy("sent again"),
        "replay_archivedmessage",
        is_final=True,
    ),
    Kind.DISCARD: Words(
        gettext_lazy("Discard"),
        gettext_lazy("Delete %(messages)s of %(queues)s from the archive, with bodies and errors?"),
        gettext_lazy("discarded"),
        "delete_message",
        is_final=True,
    ),
}

#: Actions that delete messages for good.
DELETING = (Kind.DELETE, Kind.PURGE, Kind.DISCARD)
#: Actions that skip messages in flight unless the user includes them.
HELD = (Kind.READABLE, Kind.CANCEL, Kind.DELETE, Kind.PURGE)
#: Actions that offer a target queue and a rate limit.
SENT = (Kind.REDRIVE, Kind.REPLAY)


class Job(NamedTuple):
    """An action and its messages."""

    kind: Kind
    targets: Targets


@dataclass(frozen=True)
class Asked:
    """A question: its time, its id, and per job and queue the count and highest id of messages."""

    at: dt.datetime
    extents: list[dict[int, Extent]]
    #: The question's id. The answer contains it, so a repeated answer is recognized.
    question: UUID

    @classmethod
    def now(cls, jobs: Sequence[Job]) -> Asked:
        with connections[Queue.objects.database()].cursor() as cursor:
            at = server_time(cursor)
        return cls(at, [job.targets.extents() for job in jobs], uuid4())

    @classmethod
    def from_text(cls, text: str, jobs: Sequence[Job]) -> Asked:
        """Parse the output of :meth:`as_text`. Raise SuspiciousOperation if the text is invalid."""
        try:
            told = json.loads(text)
            extents = [
                {int(pk): Extent(int(count), int(highest)) for pk, (count, highest) in each.items()}
                for each in told["extents"]
            ]
            if len(extents) != len(jobs):
                raise ValueError("another question")
            return cls(dt.datetime.fromisoformat(told["at"]), extents, UUID(told["question"]))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise SuspiciousOperation("the form's field 'asked' is invalid") from error

    def as_text(self) -> str:
        told = {"at": self.at.isoformat(), "extents": self.extents, "question": str(self.question)}
        return json.dumps(told)

    def __len__(self) -> int:
        return sum(extent.number for each in self.extents for extent in each.values())

    def messages(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, int, list[int]]]:
        """Yield (job, queue id, message ids). Leave out messages that came after the question."""
        for job, extents in zip(jobs, self.extents, strict=True):
            for pk, ids in job.targets.gather(self.at).items():
                extent = extents.get(pk, Extent(0, 0))
                chosen = [each for each in ids if each <= extent.highest][: extent.number]
                if chosen:
                    yield job, pk, chosen


class ActionForm(forms.Form):
    """The options on the confirmation page."""

    in_flight = forms.BooleanField(
        required=False, label=gettext_lazy("Also messages in flight, which a consumer holds")
    )
    to = forms.ModelChoiceField(
        Queue.objects.none(),
        required=False,
        to_field_name="name",
        label=gettext_lazy("To queue"),
        empty_label=gettext_lazy("each to its source queue"),
    )
    rate = forms.FloatField(
        required=False,
        min_value=0.1,
        max_value=100_000,
        label=gettext_lazy("Maximum messages per second"),
    )

    def __init__(self, request: HttpRequest, kinds: set[Kind], **given: Any) -> None:
        super().__init__(label_suffix="", prefix="with", **given)
        self.fields["to"].queryset = queues_for(request).order_by("name")  # type: ignore[attr-defined]
        if not kinds & set(HELD):
            del self.fields["in_flight"]
        if not kinds & set(SENT):
            del self.fields["to"], self.fields["rate"]

    def values(self) -> dict[str, Any]:
        """Return the chosen options as field values of a BulkAction."""
        given = self.cleaned_data
        to = given.get("to")
        return {
            "in_flight": given.get("in_flight", False),
            "target": to.name if to else "",
            "rate": given.get("rate"),
        }


def may(request: HttpRequest, kind: Kind) -> bool:
    """Return whether the user has the permission for this kind of action."""
    return request.user.has_perm(f"django_pgqueue.{WORDS[kind].permission}")


@dataclass
class Action:
    """Handles a request for an action: asks for confirmation where needed, then acts."""

    page: Page
    jobs: Sequence[Job]
    back: str  # The URL to return to.
    #: Hidden fields of the confirmation form. The form is posted to the current URL.
    fields: Mapping[str, str] = field(default_factory=dict)
    title: str = ""
    about: str = ""  # Text above the question, such as the messages' common error.
    typed: str = ""  # The name that the user must type to confirm.
    ask: bool = False  # Whether to ask even if messages are few and the action is not final.

    @cached_property
    def using(self) -> str:
        return Queue.objects.database()

    @cached_property
    def queues(self) -> dict[int, Queue]:
        """The queues that the user may see, by id."""
        return {queue.pk: queue for queue in queues_for(self.page.request)}

    def answer(self) -> HttpResponse:
        """Return the next page: the question, or the result of the action."""
        if not all(may(self.page.request, job.kind) for job in self.jobs):
            raise PermissionDenied
        kinds, given = {job.kind for job in self.jobs}, self.page.request.POST
        form = ActionForm(self.page.request, kinds, data=given)
        if "confirmed" in given:
            asked = Asked.from_text(given.get("asked", ""), self.jobs)
            if given.get("typed", "").strip() != self.typed:
                form.add_error(None, NOT_TYPED)
            if form.is_valid():
                return self._act(asked, asked.question, form.values())
            return self._question(asked, form)
        asked = Asked.now(self.jobs)
        final = any(WORDS[kind].is_final for kind in kinds)
        if self.ask or final or self.typed or len(asked) > AT_ONCE or not form.is_valid():
            initial = {"in_flight": "with-in_flight" in given}
            return self._question(asked, ActionForm(self.page.request, kinds, initial=initial))
        return self._act(asked, None, form.values())

    def _act(self, asked: Asked, question: UUID | None, values: dict[str, Any]) -> HttpResponse:
        if known := self._answered(question):
            return self._repeated(known)
        chosen = [
            (job, self.queues[pk], ids)
            for job, pk, ids in asked.messages(self.jobs)
            if pk in self.queues
        ]
        user = self.page.request.user
        values |= {"question": question, "user_id": str(user.pk), "username": user.get_username()}
        few = sum(len(ids) for _job, _queue, ids in chosen) <= AT_ONCE and not values["rate"]
        try:
            with transaction.atomic(using=self.using):
                act = self._at_once if few else self._begin
                done = [act(*each, values) for each in chosen]
        except (Error, PgQueueError) as error:
            if is_lost(self.using):
                raise  # The commit may have succeeded.
            if known := self._answered(question):  # Another request sent this answer first.
                return self._repeated(known)
            self.page.tell(_("Nothing was changed: %s") % cut(str(error), 500), messages.ERROR)
            return HttpResponseRedirect(self.back)
        if few:
            self._tell_all(done)
            return HttpResponseRedirect(self.back)
        drive(done)
        return self._shown(done)

    def _answered(self, question: UUID | None) -> list[BulkAction]:
        """Return the bulk actions that an earlier answer to this question started."""
        if question is None:
            return []
        return list(BulkAction.objects.using(self.using).filter(question=question))

    def _repeated(self, bulk_actions: Sequence[BulkAction]) -> HttpResponse:
        told = _("This form was submitted before. The action was not repeated.")
        self.page.tell(told, messages.WARNING)
        return self._shown(bulk_actions)

    def _shown(self, bulk_actions: Sequence[BulkAction]) -> HttpResponse:
        """Redirect to the bulk actions. If the user may not see them, show their states instead."""
        site = self.page.owner.admin_site
        if site.is_registered(BulkAction):
            owner: Any = site.get_model_admin(BulkAction)
            if owner.has_view_permission(self.page.request):
                if len(bulk_actions) == 1:
                    url = self.page.url("bulkaction_change", bulk_actions[0].pk)
                    return HttpResponseRedirect(url)
                return HttpResponseRedirect(self.page.url("bulkaction_changelist"))
        for bulk_action in bulk_actions:
            bulk_action.refresh_from_db()
            self.page.tell(_told(bulk_action), messages.INFO)
        return HttpResponseRedirect(self.back)

    def _question(self, asked: Asked, form: ActionForm) -> HttpResponse:
        items = [
            f"{self.queues[pk].name}: {counted(extent.number)}"
            for each in asked.extents
            for pk, extent in each.items()
            if pk in self.queues
        ]
        return self.page.render(
            {
                "title": self.title or str(WORDS[self.jobs[0].kind].title),
                "about": self.about,
                "recent": [_told(bulk_action) for bulk_action in self._recent(asked)],
                "questions": [
                    self._sentence(job, each)
                    for job, each in zip(self.jobs, asked.extents, strict=True)
                    if each
                ],
                "items": items if len(items) > 1 else [],
                "form": form,
                "fields": {**self.fields, "asked": asked.as_text()},
                "typed": self.typed,
                "deletes": any(job.kind in DELETING for job in self.jobs),
                "back": self.back,
                "nothing": not len(asked),
            },
            "confirm_action",
        )

    def _sentence(self, job: Job, extents: Mapping[int, Extent]) -> str:
        names = [self.queues[pk].name for pk in extents if pk in self.queues]
        queues = ", ".join(names[:NAMED]) + (", …" if len(names) > NAMED else "")
        count = sum(extent.number for extent in extents.values())
        return str(WORDS[job.kind].question) % {"messages": counted(count), "queues": queues}

    def _recent(self, asked: Asked) -> Iterator[BulkAction]:
        """Yield running and recent bulk actions of the same kind and filter, for a warning."""
        for job, extents in zip(self.jobs, asked.extents, strict=True):
            same = BulkAction.objects.filter(
                queue__in=[pk for pk in extents if pk in self.queues],
                kind=job.kind,
                filter=job.targets.as_query(),
            )
            yield from same.filter(
                Q(state=BulkAction.RUNNING) | Q(created_at__gte=asked.at - RECENT)
            ).order_by("pk")[:10]

    def _at_once(
        self, job: Job, queue: Queue, ids: list[int], values: Mapping[str, Any]
    ) -> BulkAction:
        """Act in the current transaction.

        If a question was asked, a BulkAction is saved: a repeated answer then does nothing.
        """
        bulk_action = BulkAction(
            queue=queue,
            queue_name=queue.name,
            kind=job.kind,
            filter=job.targets.as_query(),
            highest_id=max(ids),
            count=len(ids),
            state=BulkAction.DONE,
            **values,
        )
        if bulk_action.question:
            bulk_action.save(using=queue.alias)
        [(last,)] = queue.opened.run("redrive/last_id")
        bulk_action.done = bulk_action.act(queue.opened, ids)
        bulk_action.passed = len(ids) - bulk_action.done
        bulk_action.finished_at = now()
        if bulk_action.question:
            bulk_action.save(update_fields=["done", "passed", "finished_at"])
        if bulk_action.done:
            copies = self._copies(bulk_action, ids, last) if job.kind is Kind.REPLAY else []
            told = {**ids_of(ids), "to": bulk_action.target or None}
            if copies:
                told["copies"] = [copy.pk for copy in copies]
                links = ((self.page.owner.message_link(copy.pk, copy.queue_id),) for copy in copies)
                text = format_html_join(", ", "{}", links)
                self.page.tell(format_html(_("Copies: {}"), text), messages.INFO)
            about = (queue.pk, queue.name)
            record(queue.opened.runner, str(job.kind), about, told, bulk_action.done)
        return bulk_action

    @staticmethod
    def _copies(bulk_action: BulkAction, ids: Sequence[int], last: int) -> list[Message]:
        """Return the copies that a replay has just sent: those with ids above ``last``."""
        name = bulk_action.target or bulk_action.queue_name
        rows = Message.objects.using(bulk_action.queue.alias).filter(
            queue=Queue.objects.resolve(name, bulk_action.queue.alias),
            pk__gt=last,
            **{"headers__x-replay-of__in": ids},
        )
        return list(rows.only("pk", "queue_id").order_by("pk"))

    def _tell_all(self, bulk_actions: Sequence[BulkAction]) -> None:
        """Show how many messages were acted on, and how many were skipped."""
        done: Counter[Any] = Counter()
        for bulk_action in bulk_actions:
            done[WORDS[Kind(bulk_action.kind)].done] += bulk_action.done
        passed = sum(bulk_action.passed for bulk_action in bulk_actions)
        for word, count in done.items():
            if count:
                self.page.tell(f"{counted(count)} {word}.")
        if passed or not done:
            told = _(
                "%(messages)s skipped: in flight, or no longer in the state that this action needs."
            )
            self.page.tell(told % {"messages": counted(passed)}, messages.WARNING)

    def _begin(
        self, job: Job, queue: Queue, ids: list[int], values: Mapping[str, Any]
    ) -> BulkAction:
        given = {**values, "filter": job.targets.as_query()}
        return BulkAction.objects.begin(queue, job.kind, ids, given)


def drive(bulk_actions: Sequence[BulkAction]) -> None:
    """Run steps for ``SECONDS``. After a database error, later requests or consumers continue."""
    try:
        only = [bulk_action.pk for bulk_action in bulk_actions]
        BulkAction.objects.drive(SECONDS, using=Queue.objects.database(), only=only)
    except Error as error:
        signals.database_failed.send_robust(
            "admin", operation="bulk action", error=error, wait=SECONDS
        )


def progress(bulk_action: BulkAction) -> str:
    """Return the number of changed and skipped messages as text: "5 of 20 messages"."""
    return _("%(done)s of %(count)s messages") % {
        "done": number(bulk_action.done + bulk_action.passed),
        "count": number(bulk_action.count),
    }


def _told(bulk_action: BulkAction) -> str:
    text = _(
        "Bulk action %(pk)s, started at %(moment)s: %(state)s, %(progress)s, %(done)s %(word)s"
    )
    return text % {
        "done": number(bulk_action.done),
        "word": WORDS[Kind(bulk_action.kind)].done,
        "pk": bulk_action.pk,
        "moment": moment(bulk_action.created_at),
        "state": STATES[bulk_action.state],
        "progress": progress(bulk_action),
    }
