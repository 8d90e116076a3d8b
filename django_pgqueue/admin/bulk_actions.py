"""Actions on messages: in one transaction for few messages, in steps for more.

A *question* is the confirmation page, an *answer* its form. An answer counts once: a double click
or a page sent again starts nothing. An action on more than ``AT_ONCE`` messages is a bulk action:
the request commits it, then does its first steps. Its page shows an error of a step.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol
from uuid import UUID, uuid4

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth import get_user_model
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.db import Error, connections, router, transaction
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.utils.timezone import now
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue import ddl, signals
from django_pgqueue.admin.access import allowed, queues_for
from django_pgqueue.admin.base import PageAdmin, RecordAdmin
from django_pgqueue.admin.page import Page
from django_pgqueue.admin.search import Extent
from django_pgqueue.admin.wording import counted, cut, moment
from django_pgqueue.errors import PgQueueError
from django_pgqueue.maintenance.round import is_lost
from django_pgqueue.models import BulkAction, Message, Queue
from django_pgqueue.models.bulk import Kind
from django_pgqueue.wording import age

__all__ = ["AT_ONCE", "NOT_TYPED", "BulkActionAdmin", "Job", "may", "perform"]

#: An action on more messages than this is a bulk action.
AT_ONCE = 50
NOT_TYPED = gettext_lazy("Nothing was changed: type the name of the queue to confirm.")

#: The confirmation page warns of identical bulk actions that are younger than this.
RECENT = dt.timedelta(hours=1)
#: Seconds that a request spends on steps: the first request, and each refresh of the action's page.
SECONDS = 1.0


class Words(NamedTuple):
    """The texts of an action, and the permission that it requires."""

    title: Any
    question: Any
    done: Any
    permission: str
    is_final: bool = False


WORDS = {
    Kind.READABLE: Words(
        gettext_lazy("Make messages readable now"),
        gettext_lazy("Make these messages readable at once?"),
        gettext_lazy("made readable"),
        "settle_message",
    ),
    Kind.REDRIVE: Words(
        gettext_lazy("Redrive dead letters"),
        gettext_lazy(
            "Send these dead letters back to the queues that they came from? "
            "Those that a consumer holds stay."
        ),
        gettext_lazy("redriven"),
        "redrive_message",
    ),
    Kind.ARCHIVE: Words(
        gettext_lazy("Archive messages"),
        gettext_lazy("Archive these messages as cancelled by hand?"),
        gettext_lazy("archived"),
        "settle_message",
    ),
    Kind.DELETE: Words(
        gettext_lazy("Delete messages for good"),
        gettext_lazy("Delete these messages, with their bodies? Archived ones stay."),
        gettext_lazy("deleted"),
        "delete_message",
        is_final=True,
    ),
    Kind.PURGE: Words(
        gettext_lazy("Purge"),
        gettext_lazy("Delete every message that waits in this queue? The archive stays."),
        gettext_lazy("purged"),
        "purge_queue",
        is_final=True,
    ),
    Kind.REPLAY: Words(
        gettext_lazy("Send archived messages again"),
        gettext_lazy("Send these messages again, as new ones, to the queues they were in?"),
        gettext_lazy("sent again"),
        "replay_archivedmessage",
        is_final=True,
    ),
    Kind.DISCARD: Words(
        gettext_lazy("Discard archived messages"),
        gettext_lazy("Delete these messages from the archive, with their bodies and errors?"),
        gettext_lazy("discarded"),
        "delete_message",
        is_final=True,
    ),
}

#: Actions that delete messages for good.
DELETING = (Kind.DELETE, Kind.PURGE, Kind.DISCARD)
#: Actions that skip messages in flight unless the user includes them.
HELD = (Kind.READABLE, Kind.ARCHIVE, Kind.DELETE, Kind.PURGE)
#: Actions with a choice of target queue and a rate limit.
SENT = (Kind.REDRIVE, Kind.REPLAY)


class Targets(Protocol):
    """The messages of an action: a search's, a queue's backlog, or a group of failures."""

    def extents(self, *, using: str) -> dict[int, Extent]: ...

    def gather(self, asked_at: dt.datetime, *, using: str) -> dict[int, list[int]]: ...

    def as_query(self) -> dict[str, str]: ...


class Job(NamedTuple):
    """An action and its messages."""

    kind: Kind
    targets: Targets


@dataclass(frozen=True)
class Asked:
    """What the question asked about: its time, and per job the messages' number and highest ids."""

    at: dt.datetime
    extents: list[dict[int, Extent]]
    #: The question's id. Repeated answers carry the same one.
    question: UUID

    @classmethod
    def now(cls, jobs: Sequence[Job], using: str) -> Asked:
        with connections[using].cursor() as cursor:
            at = ddl.server_time(cursor)
        return cls(at, [job.targets.extents(using=using) for job in jobs], uuid4())

    @classmethod
    def from_text(cls, text: str, jobs: Sequence[Job]) -> Asked:
        """Parse what :meth:`as_text` wrote. Raises SuspiciousOperation if invalid."""
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
            raise SuspiciousOperation("not an answer to a question") from error

    def as_text(self) -> str:
        told = {"at": self.at.isoformat(), "extents": self.extents, "question": str(self.question)}
        return json.dumps(told)

    def __len__(self) -> int:
        return sum(extent.number for each in self.extents for extent in each.values())

    def highest(self) -> int:
        found = [extent.highest for each in self.extents for extent in each.values()]
        return max(found, default=0)

    def messages(self, jobs: Sequence[Job], using: str) -> Iterator[tuple[Job, int, list[int]]]:
        """The ids by job and queue. Messages sent after the question are left out."""
        for job, extents in zip(jobs, self.extents, strict=True):
            for pk, ids in job.targets.gather(self.at, using=using).items():
                extent = extents.get(pk, Extent(0, 0))
                chosen = [each for each in ids if each <= extent.highest][: extent.number]
                if chosen:
                    yield job, pk, chosen


class BulkActionForm(forms.Form):
    """The options on a question's form."""

    in_flight = forms.BooleanField(
        required=False, label=gettext_lazy("Also messages in flight, which a consumer holds")
    )
    to = forms.ModelChoiceField(
        Queue.objects.none(),
        required=False,
        to_field_name="name",
        label=gettext_lazy("To queue"),
        empty_label=gettext_lazy("the queue that each came from"),
    )
    rate = forms.FloatField(
        required=False,
        min_value=0.1,
        max_value=100_000,
        label=gettext_lazy("Messages a second at most"),
    )

    def __init__(
        self,
        request: HttpRequest,
        kinds: Iterable[Kind],
        data: Any = None,
        *,
        options: bool = True,
    ) -> None:
        super().__init__(data, label_suffix="", prefix="with")
        kinds = set(kinds)
        self.fields["to"].queryset = queues_for(request).order_by("name")  # type: ignore[attr-defined]
        if not kinds & set(HELD):
            del self.fields["in_flight"]
        if not (options and kinds & set(SENT)):
            del self.fields["to"], self.fields["rate"]

    def values(self) -> dict[str, Any]:
        """The chosen options, as field values of a BulkAction."""
        given = self.cleaned_data
        to = given.get("to")
        return {
            "in_flight": given.get("in_flight", False),
            "target": to.name if to else "",
            "rate": given.get("rate"),
        }


def may(request: HttpRequest, kind: Kind) -> bool:
    """Whether the user has the permission for this kind of action."""
    return request.user.has_perm(f"django_pgqueue.{WORDS[kind].permission}")


def perform(
    page: PageAdmin,
    request: HttpRequest,
    jobs: Sequence[Job],
    *,
    back: str,
    fields: Mapping[str, str] | None = None,
    title: str = "",
    about: str = "",
    typed: str = "",
    ask: bool = False,
    options: bool = True,
) -> HttpResponse:
    """Ask for confirmation where needed, then act. Returns the next page.

    Arguments:
        back: the address to return to.
        fields: hidden fields of the question's form, which is posted to the same address.
        about: what the messages have in common, for the question.
        typed: a name that the user must type to confirm.
        ask: ask for confirmation even if the messages are few and the action can be undone.
        options: offer a target queue and a rate.
    """
    if not all(may(request, job.kind) for job in jobs):
        raise PermissionDenied
    using = Queue.objects.database()
    confirmed = "confirmed" in request.POST
    kinds = [job.kind for job in jobs]
    form = BulkActionForm(request, kinds, request.POST, options=options)
    if confirmed:
        asked = Asked.from_text(request.POST.get("asked", ""), jobs)
        if request.POST.get("typed", "").strip() != typed:
            form.add_error(None, NOT_TYPED)
    else:
        asked = Asked.now(jobs, using)
        final = any(WORDS[job.kind].is_final for job in jobs)
        confirmed = not (ask or final or typed) and len(asked) <= AT_ONCE
    if not confirmed or not form.is_valid():
        if not confirmed:
            form = BulkActionForm(request, kinds, options=options)
        return _question(page, request, jobs, asked, form, back, fields or {}, title, about, typed)
    question = asked.question if "confirmed" in request.POST else None
    known = _answered(question, using)
    if known:
        return _repeated(page, request, known, back)
    names = {queue.pk: queue for queue in queues_for(request)}
    chosen = [(job, names[pk], ids) for job, pk, ids in asked.messages(jobs, using) if pk in names]
    values = {
        **form.values(),
        "question": question,
        "user_id": str(request.user.pk),
        "username": request.user.get_username(),
    }
    few = sum(len(ids) for _job, _queue, ids in chosen) <= AT_ONCE and not values["rate"]
    log = router.db_for_write(LogEntry)
    try:
        with transaction.atomic(using=using), transaction.atomic(using=log):
            bulk_actions = (_at_once if few else _begin)(page, request, chosen, values)
    except (Error, PgQueueError) as error:
        if is_lost(using):
            raise  # the commit may have succeeded
        known = _answered(question, using)
        if known:  # another request with the same answer got here first
            return _repeated(page, request, known, back)
        told = _("Nothing was changed: %s") % cut(str(error), 500)
        page.message_user(request, told, messages.ERROR)
        return HttpResponseRedirect(back)
    if few:
        _tell(page, request, bulk_actions)
        return HttpResponseRedirect(back)
    _drive(bulk_actions, using)
    return _shown(page, request, bulk_actions, back)


def _answered(question: UUID | None, using: str) -> list[BulkAction]:
    """The bulk actions that an earlier answer to this question started."""
    if question is None:
        return []
    return list(BulkAction.objects.using(using).filter(question=question))


def _repeated(
    page: PageAdmin, request: HttpRequest, bulk_actions: Sequence[BulkAction], back: str
) -> HttpResponse:
    told = _("This question was answered before: nothing was done again.")
    page.message_user(request, told, messages.WARNING)
    return _shown(page, request, bulk_actions, back)


def _shown(
    page: PageAdmin, request: HttpRequest, bulk_actions: Sequence[BulkAction], back: str
) -> HttpResponse:
    """Redirect to the bulk actions; if the user may not see these, to ``back`` with messages."""
    site = page.admin_site
    if site.is_registered(BulkAction):
        owner: Any = site.get_model_admin(BulkAction)
        if owner.has_view_permission(request):
            if len(bulk_actions) == 1:
                return HttpResponseRedirect(page.url("bulkaction_change", bulk_actions[0].pk))
            return HttpResponseRedirect(page.url("bulkaction_changelist"))
    for bulk_action in bulk_actions:
        bulk_action.refresh_from_db()
        page.message_user(request, _told(bulk_action))
    return HttpResponseRedirect(back)


def _drive(bulk_actions: Sequence[BulkAction], using: str) -> None:
    """Run the next steps. After a lost connection, later requests or consumers continue."""
    try:
        only = [bulk_action.pk for bulk_action in bulk_actions]
        BulkAction.objects.drive(SECONDS, using=using, only=only)
    except Error as error:
        signals.database_failed.send_robust(
            "admin", operation="bulk action", error=error, wait=SECONDS
        )


def _question(
    page: PageAdmin,
    request: HttpRequest,
    jobs: Sequence[Job],
    asked: Asked,
    form: BulkActionForm,
    back: str,
    fields: Mapping[str, str],
    title: str,
    about: str,
    typed: str,
) -> HttpResponse:
    names = dict(queues_for(request).values_list("pk", "name"))
    items = [
        f"{names[pk]}: {counted(extent.number)}"
        for each in asked.extents
        for pk, extent in each.items()
        if pk in names
    ]
    if len(asked) > 1:
        items.append(
            _("%(count)s in all, up to id %(highest)s")
            % {"count": f"{len(asked):,}", "highest": asked.highest()}
        )
    words = [WORDS[job.kind] for job, each in zip(jobs, asked.extents, strict=True) if each]
    return page.render_page(
        request,
        "admin/django_pgqueue/confirm_action.html",
        {
            "title": title or str(WORDS[jobs[0].kind].title),
            "about": about,
            "recent": [_told(bulk_action) for bulk_action in _recent(jobs, asked, names)],
            "questions": list(dict.fromkeys(str(word.question) for word in words)),
            "items": items,
            "form": form,
            "fields": {**fields, "asked": asked.as_text()},
            "typed": typed,
            "deletes": any(job.kind in DELETING for job in jobs),
            "back": back,
            "nothing": not len(asked),
        },
    )


def _recent(jobs: Sequence[Job], asked: Asked, names: Container[int]) -> Iterator[BulkAction]:
    """Running and recent bulk actions with the same action and filter, for a warning."""
    for job, extents in zip(jobs, asked.extents, strict=True):
        same = BulkAction.objects.filter(
            queue__in=[pk for pk in extents if pk in names],
            kind=job.kind,
            filter=job.targets.as_query(),
        )
        yield from same.filter(
            Q(state=BulkAction.RUNNING) | Q(created_at__gte=asked.at - RECENT)
        ).order_by("pk")[:10]


def _told(bulk_action: BulkAction) -> str:
    text = _("Bulk action %(pk)s, begun at %(moment)s: %(state)s, %(progress)s, %(done)s %(word)s")
    return text % {
        "done": f"{bulk_action.done:,}",
        "word": WORDS[Kind(bulk_action.kind)].done,
        "pk": bulk_action.pk,
        "moment": moment(bulk_action.created_at),
        "state": STATES[bulk_action.state],
        "progress": _progress(bulk_action),
    }


def _at_once(
    page: PageAdmin,
    request: HttpRequest,
    chosen: Iterable[tuple[Job, Queue, list[int]]],
    values: Mapping[str, Any],
) -> list[BulkAction]:
    """Act in this transaction. The BulkAction rows keep a repeated answer from acting again."""
    bulk_actions = []
    for job, queue, ids in chosen:
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
        bulk_action.done = bulk_action.act(queue.opened, ids)
        bulk_action.passed = len(ids) - bulk_action.done
        bulk_action.finished_at = now()
        if bulk_action.question:
            bulk_action.save(update_fields=["done", "passed", "finished_at"])
        bulk_actions.append(bulk_action)
        if bulk_action.done:
            told = f"{counted(bulk_action.done)} {WORDS[job.kind].done}: {listed(ids)}"
            page.log_change(request, queue, told)
            rows = [Message(pk=pk, queue_id=queue.pk) for pk in ids]
            LogEntry.objects.log_actions(request.user.pk or 0, rows, CHANGE, told)
    return bulk_actions


def _tell(page: PageAdmin, request: HttpRequest, bulk_actions: Sequence[BulkAction]) -> None:
    """Show how many messages were acted on, and how many were skipped."""
    done: dict[Any, int] = {}
    for bulk_action in bulk_actions:
        word = WORDS[Kind(bulk_action.kind)].done
        done[word] = done.get(word, 0) + bulk_action.done
    for word, number in done.items():
        if number:
            page.message_user(request, f"{counted(number)} {word}.", messages.SUCCESS)
    passed = sum(bulk_action.passed for bulk_action in bulk_actions)
    if passed or not done:
        told = _(
            "%(messages)s skipped: in flight, or no longer in the state that this action needs."
        )
        page.message_user(request, told % {"messages": counted(passed)}, messages.WARNING)


def _begin(
    page: PageAdmin,
    request: HttpRequest,
    chosen: Iterable[tuple[Job, Queue, list[int]]],
    values: Mapping[str, Any],
) -> list[BulkAction]:
    begun = []
    for job, queue, ids in chosen:
        given = {**values, "filter": job.targets.as_query()}
        bulk_action = BulkAction.objects.begin(queue, job.kind, ids, given)
        begun.append(bulk_action)
        page.log_change(request, queue, _log(bulk_action, _("begun")))
    return begun


def _progress(bulk_action: BulkAction) -> str:
    return _("%(done)s of %(count)s messages") % {
        "done": f"{bulk_action.done + bulk_action.passed:,}",
        "count": f"{bulk_action.count:,}",
    }


def _log(bulk_action: BulkAction, what: str) -> str:
    return _("%(title)s, %(messages)s up to id %(highest)s: bulk action %(pk)s %(what)s.") % {
        "title": WORDS[Kind(bulk_action.kind)].title,
        "messages": counted(bulk_action.count),
        "highest": bulk_action.highest_id,
        "pk": bulk_action.pk,
        "what": what,
    }


def log_end(bulk_action: BulkAction, **kwargs: Any) -> None:
    """Receiver of ``bulk_action_ended``: log the end in the admin's history of the queue."""
    if not bulk_action.user_id:
        return
    user_model = get_user_model()
    with transaction.atomic(using=router.db_for_write(LogEntry)):
        user = user_model._default_manager.filter(pk=bulk_action.user_id).first()
        if user is None:
            return
        word = WORDS[Kind(bulk_action.kind)].done
        told = f"{bulk_action.done:,} {word}"
        if bulk_action.passed:
            told += ", " + _("%s skipped") % f"{bulk_action.passed:,}"
        if bulk_action.error:
            told += f"; {bulk_action.error}"
        LogEntry.objects.create(
            user_id=user.pk,
            content_type_id=ContentType.objects.get_for_model(Queue).pk,
            object_id=str(bulk_action.queue_id),
            object_repr=str(bulk_action.queue)[:200],
            action_flag=CHANGE,
            change_message=_log(bulk_action, f"{_('ended')}: {told}"),
        )


signals.bulk_action_ended.connect(log_end, dispatch_uid="django_pgqueue.admin.bulk_actions")


def _has_queue(bulk_action: BulkAction) -> bool:
    """Whether the queue still exists. A dropped queue leaves its bulk actions behind."""
    return Queue.objects.filter(pk=bulk_action.queue_id).exists()


class BulkActionPage(Page):
    """One bulk action. The page runs the steps if the user may do this action."""

    template = "bulk_action"

    def answer(self, object_id: str) -> HttpResponse:
        if self.request.method != "GET":
            raise PermissionDenied
        if not object_id.isdecimal():
            return HttpResponseRedirect(self.url("bulkaction_changelist"))
        bulk_action = get_object_or_404(self.owner.get_queryset(self.request), pk=object_id)
        ended = bulk_action.finished_at or bulk_action.stepped_at
        taken = (ended - bulk_action.created_at).total_seconds() if ended else 0.0
        return self.render_live(
            {
                "title": f"{self.owner.action(bulk_action)}: {bulk_action.queue_name}",
                "bulk_action": bulk_action,
                "state": self.owner.state_now(bulk_action),
                "facts": self._facts(bulk_action),
                "progress": self.owner.progress(bulk_action),
                "percent": 100
                * (bulk_action.count - bulk_action.left)
                // max(1, bulk_action.count),
                "taken": age(taken),
                "may": may(self.request, Kind(bulk_action.kind)) and _has_queue(bulk_action),
                "is_running": bulk_action.state == BulkAction.RUNNING,
                "is_stopped": bulk_action.state == BulkAction.STOPPED,
                "may_resume": bulk_action.state in (BulkAction.STOPPED, BulkAction.FAILED),
            },
        )

    def _facts(self, bulk_action: BulkAction) -> list[tuple[str, str]]:
        words = WORDS[Kind(bulk_action.kind)]
        asked = ", ".join(f"{name}={value}" for name, value in bulk_action.filter.items())
        facts = [
            (_("Queue"), self.owner.in_queue(bulk_action)),
            (_("Asked for by"), self.owner.who(bulk_action)),
            (_("Begun at"), moment(bulk_action.created_at)),
            (_("Messages asked about"), f"{bulk_action.count:,}"),
            (_("Up to id"), str(bulk_action.highest_id)),
            (_("Chosen by"), cut(asked, 200) or _("the whole queue")),
            (str(words.done).capitalize(), f"{bulk_action.done:,}"),
            (_("Left alone"), f"{bulk_action.passed:,}"),
        ]
        if bulk_action.target:
            facts.append((_("To queue"), bulk_action.target))
        if bulk_action.rate:
            facts.append((_("Messages a second at most"), f"{bulk_action.rate:g}"))
        if bulk_action.in_flight:
            facts.append((_("In flight"), _("too")))
        if bulk_action.finished_at:
            facts.append((_("Ended at"), moment(bulk_action.finished_at)))
        if bulk_action.error:
            facts.append((_("Error"), cut(bulk_action.error, 500)))
        return facts


class _StepPage(Page):
    """Acts on one bulk action, and leads back to its page."""

    is_post = True

    @classmethod
    def permits(cls, owner: PageAdmin, request: HttpRequest) -> bool:
        return True  # answer() asks for the permission of the action's kind

    def answer(self, pk: int) -> HttpResponse:
        bulk_action = get_object_or_404(self.owner.get_queryset(self.request), pk=pk)
        if not may(self.request, Kind(bulk_action.kind)):
            raise PermissionDenied
        if not _has_queue(bulk_action):
            raise Http404
        self.act(bulk_action)
        return HttpResponseRedirect(self.url("bulkaction_change", pk))

    def act(self, bulk_action: BulkAction) -> None:
        raise NotImplementedError


class StepPage(_StepPage):
    """Runs steps for ``SECONDS``, unless another process runs them."""

    name = "bulkaction_step"
    route = "<int:pk>/step/"

    def act(self, bulk_action: BulkAction) -> None:
        _drive([bulk_action], bulk_action.queue.alias)


class StopPage(_StepPage):
    """Stops a bulk action."""

    name = "bulkaction_stop"
    route = "<int:pk>/stop/"

    def act(self, bulk_action: BulkAction) -> None:
        if bulk_action.stop():
            bulk_action.refresh_from_db()
            done = _("stopped after %s") % counted(bulk_action.done)
            self.owner.log_change(self.request, bulk_action.queue, _log(bulk_action, done))


class ResumePage(_StepPage):
    """Resumes a bulk action."""

    name = "bulkaction_resume"
    route = "<int:pk>/resume/"

    def act(self, bulk_action: BulkAction) -> None:
        if bulk_action.resume():
            resumed = _log(bulk_action, _("resumed"))
            self.owner.log_change(self.request, bulk_action.queue, resumed)
            _drive([bulk_action], bulk_action.queue.alias)


@admin.register(BulkAction)
class BulkActionAdmin(RecordAdmin):
    """Bulk actions: their progress, with buttons to stop and resume."""

    list_display = [
        "id",
        "action",
        "in_queue",
        "state_now",
        "progress",
        "changed",
        "who",
        "begun_at",
    ]
    pages = [StepPage, StopPage, ResumePage]

    def get_queryset(self, request: HttpRequest) -> QuerySet[BulkAction]:
        rows = super().get_queryset(request).prefetch_related("queue")
        seen = allowed(request)
        return rows if seen is None else rows.filter(queue_id__in=list(seen))

    @admin.display(description=gettext_lazy("action"))
    def action(self, bulk_action: BulkAction) -> str:
        return str(WORDS[Kind(bulk_action.kind)].title)

    @admin.display(description=gettext_lazy("queue"))
    def in_queue(self, bulk_action: BulkAction) -> str:
        try:
            return self.link(Queue, bulk_action.queue_id, bulk_action.queue)
        except Queue.DoesNotExist:
            return str(bulk_action.queue_name)

    @admin.display(description=gettext_lazy("state"))
    def state_now(self, bulk_action: BulkAction) -> str:
        return str(STATES[bulk_action.state])

    @admin.display(description=gettext_lazy("progress"))
    def progress(self, bulk_action: BulkAction) -> str:
        return _progress(bulk_action)

    @admin.display(description=gettext_lazy("changed"))
    def changed(self, bulk_action: BulkAction) -> str:
        return f"{bulk_action.done:,}"

    @admin.display(description=gettext_lazy("asked for by"))
    def who(self, bulk_action: BulkAction) -> str:
        return cut(bulk_action.username, 80)

    @admin.display(description=gettext_lazy("begun at"))
    def begun_at(self, bulk_action: BulkAction) -> str:
        return moment(bulk_action.created_at)

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        return self.show(request, BulkActionPage, extra_context, object_id=object_id)


STATES = {
    BulkAction.RUNNING: gettext_lazy("running"),
    BulkAction.STOPPED: gettext_lazy("stopped"),
    BulkAction.DONE: gettext_lazy("done"),
    BulkAction.FAILED: gettext_lazy("failed"),
}


def listed(ids: Sequence[int]) -> str:
    """
    >>> listed([7, 8])
    '7, 8'
    """
    return ", ".join(map(str, ids[:20])) + (", …" if len(ids) > 20 else "")
