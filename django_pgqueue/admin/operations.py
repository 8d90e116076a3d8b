"""Actions on messages: on a page of them at once, on more as an operation that goes in steps."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth import get_user_model
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.db import connections, router, transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import URLPattern
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST

from django_pgqueue import ddl, signals
from django_pgqueue.admin.access import allowed, queues_for
from django_pgqueue.admin.pages import PageAdmin, RecordAdmin
from django_pgqueue.admin.patience import patiently
from django_pgqueue.admin.search import Extent
from django_pgqueue.admin.wording import counted, cut, moment
from django_pgqueue.models import Message, Operation, Queue
from django_pgqueue.models.bulk import Kind
from django_pgqueue.wording import age

__all__ = ["AT_ONCE", "NOT_TYPED", "Job", "OperationAdmin", "may", "perform"]

#: An action on more messages than this is an operation.
AT_ONCE = 50
NOT_TYPED = gettext_lazy("Nothing was changed: type the name of the queue to confirm.")

#: Seconds of steps in a request: the one that begins an operation, and each that its page makes.
SECONDS = 1.0


class Words(NamedTuple):
    """An action's words, and the permission that it takes."""

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

#: Their messages are gone for good.
DELETING = (Kind.DELETE, Kind.PURGE, Kind.DISCARD)
#: Their messages may be in flight, and are left alone then unless asked for.
HELD = (Kind.READABLE, Kind.ARCHIVE, Kind.DELETE, Kind.PURGE)
#: Their messages can go to another queue than their own, and no faster than a rate.
SENT = (Kind.REDRIVE, Kind.REPLAY)


class Targets(Protocol):
    """Messages that an action is for: a search, a queue's backlog, a group of failures."""

    def extents(self, *, using: str) -> dict[int, Extent]: ...

    def gather(self, asked_at: dt.datetime, *, using: str) -> dict[int, list[int]]: ...

    def as_query(self) -> dict[str, str]: ...


class Job(NamedTuple):
    """An action, and on which messages."""

    kind: Kind
    targets: Targets


@dataclass(frozen=True)
class Asked:
    """The subject of a question: when, and of each job how many messages, up to which ids."""

    at: dt.datetime
    extents: list[dict[int, Extent]]

    @classmethod
    def now(cls, jobs: Sequence[Job], using: str) -> Asked:
        with connections[using].cursor() as cursor:
            at = ddl.server_time(cursor)
        return cls(at, [job.targets.extents(using=using) for job in jobs])

    @classmethod
    def from_text(cls, text: str, jobs: Sequence[Job]) -> Asked:
        """As the answer brings it back. Raises SuspiciousOperation for anything else."""
        try:
            told = json.loads(text)
            extents = [
                {int(pk): Extent(int(count), int(highest)) for pk, (count, highest) in each.items()}
                for each in told["extents"]
            ]
            if len(extents) != len(jobs):
                raise ValueError("another question")
            return cls(dt.datetime.fromisoformat(told["at"]), extents)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise SuspiciousOperation("not an answer to a question") from error

    def as_text(self) -> str:
        return json.dumps({"at": self.at.isoformat(), "extents": self.extents})

    def __len__(self) -> int:
        return sum(extent.number for each in self.extents for extent in each.values())

    def highest(self) -> int:
        found = [extent.highest for each in self.extents for extent in each.values()]
        return max(found, default=0)

    def messages(self, jobs: Sequence[Job], using: str) -> Iterator[tuple[Job, int, list[int]]]:
        """The messages that were there at the question, by queue, and never more."""
        for job, extents in zip(jobs, self.extents, strict=True):
            for pk, ids in job.targets.gather(self.at, using=using).items():
                extent = extents.get(pk, Extent(0, 0))
                chosen = [each for each in ids if each <= extent.highest][: extent.number]
                if chosen:
                    yield job, pk, chosen


class OperationForm(forms.Form):
    """The choices that a question offers."""

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
        """The fields of the operation."""
        given = self.cleaned_data
        to = given.get("to")
        return {
            "in_flight": given.get("in_flight", False),
            "target": to.name if to else "",
            "rate": given.get("rate"),
        }


def may(request: HttpRequest, kind: Kind) -> bool:
    """Whether the user may do this to messages."""
    return request.user.has_perm(f"django_pgqueue.{WORDS[kind].permission}")


def perform(
    page: PageAdmin,
    request: HttpRequest,
    jobs: Sequence[Job],
    *,
    back: str,
    fields: Mapping[str, str] | None = None,
    title: str = "",
    typed: str = "",
    ask: bool = False,
    options: bool = True,
) -> HttpResponse:
    """Ask where that is due, then do it; the page that follows.

    Arguments:
        back: the address to return to.
        fields: what the answer sends along, to the same address.
        typed: a name that the answer has to repeat.
        ask: ask also about few messages, and about what can be undone.
        options: whether another queue to send them to, and a rate, are offered.
    """
    if not all(may(request, job.kind) for job in jobs):
        raise PermissionDenied
    using = Queue.objects.database()
    confirmed = "confirmed" in request.POST
    kinds = [job.kind for job in jobs]
    form = OperationForm(request, kinds, request.POST, options=options)
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
            form = OperationForm(request, kinds, options=options)
        return _question(page, request, jobs, asked, form, back, fields or {}, title, typed)
    names = {queue.pk: queue for queue in queues_for(request)}
    chosen = [(job, names[pk], ids) for job, pk, ids in asked.messages(jobs, using) if pk in names]
    values = {
        **form.values(),
        "user_id": str(request.user.pk),
        "username": request.user.get_username(),
    }
    if sum(len(ids) for _job, _queue, ids in chosen) <= AT_ONCE and not values["rate"]:
        _at_once(page, request, chosen, values)
        return HttpResponseRedirect(back)
    return _in_steps(page, request, chosen, values)


def _question(
    page: PageAdmin,
    request: HttpRequest,
    jobs: Sequence[Job],
    asked: Asked,
    form: OperationForm,
    back: str,
    fields: Mapping[str, str],
    title: str,
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


def _at_once(
    page: PageAdmin,
    request: HttpRequest,
    chosen: Iterable[tuple[Job, Queue, list[int]]],
    values: Mapping[str, Any],
) -> None:
    passed = 0
    done: dict[Any, int] = {}
    for job, queue, ids in chosen:
        words = WORDS[job.kind]
        operation = Operation(queue=queue, kind=job.kind, highest_id=0, count=len(ids), **values)
        with transaction.atomic(using=queue.alias):
            number = operation.act(queue.opened, ids)
        passed += len(ids) - number
        done[words.done] = done.get(words.done, 0) + number
        if number:
            told = f"{counted(number)} {words.done}: {listed(ids)}"
            page.log_change(request, queue, told)
            rows = [Message(pk=pk, queue_id=queue.pk) for pk in ids]
            LogEntry.objects.log_actions(request.user.pk or 0, rows, CHANGE, told)
    for word, number in done.items():
        if number:
            page.message_user(request, f"{counted(number)} {word}.", messages.SUCCESS)
    if passed or not done:
        told = _("%(messages)s left alone: no longer where the action finds them, or in flight.")
        page.message_user(request, told % {"messages": counted(passed)}, messages.WARNING)


def _in_steps(
    page: PageAdmin,
    request: HttpRequest,
    chosen: Iterable[tuple[Job, Queue, list[int]]],
    values: Mapping[str, Any],
) -> HttpResponse:
    using = Queue.objects.database()
    begun = []
    with transaction.atomic(using=using), transaction.atomic(using=router.db_for_write(LogEntry)):
        for job, queue, ids in chosen:
            given = {**values, "filter": job.targets.as_query()}
            operation = Operation.objects.begin(queue, job.kind, ids, given)
            begun.append(operation)
            page.log_change(request, queue, _log(operation, _("begun")))
    Operation.objects.drive(SECONDS, using=using)
    if len(begun) == 1:
        return HttpResponseRedirect(page.url("operation_change", begun[0].pk))
    return HttpResponseRedirect(page.url("operation_changelist"))


def _log(operation: Operation, what: str) -> str:
    return _("%(title)s, %(messages)s up to id %(highest)s: operation %(pk)s %(what)s.") % {
        "title": WORDS[Kind(operation.kind)].title,
        "messages": counted(operation.count),
        "highest": operation.highest_id,
        "pk": operation.pk,
        "what": what,
    }


def log_end(operation: Operation, **kwargs: Any) -> None:
    """Receives ``operation_ended``, in whichever process it ended: for the queue's history."""
    if not operation.user_id:
        return
    user_model = get_user_model()
    with transaction.atomic(using=router.db_for_write(LogEntry)):
        user = user_model._default_manager.filter(pk=operation.user_id).first()
        if user is None:
            return
        word = WORDS[Kind(operation.kind)].done
        told = f"{operation.done:,} {word}"
        if operation.passed:
            told += ", " + _("%s left alone") % f"{operation.passed:,}"
        if operation.error:
            told += f"; {operation.error}"
        LogEntry.objects.create(
            user_id=user.pk,
            content_type_id=ContentType.objects.get_for_model(Queue).pk,
            object_id=str(operation.queue_id),
            object_repr=str(operation.queue)[:200],
            action_flag=CHANGE,
            change_message=_log(operation, f"{_('ended')}: {told}"),
        )


signals.operation_ended.connect(log_end, dispatch_uid="django_pgqueue.admin.operations")


@admin.register(Operation)
class OperationAdmin(RecordAdmin):
    """Operations on many messages: how far they are, stopping and resuming them."""

    list_display = ["id", "action", "in_queue", "state_now", "progress", "who", "begun_at"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Operation]:
        rows = super().get_queryset(request).prefetch_related("queue")
        seen = allowed(request)
        return rows if seen is None else rows.filter(queue_id__in=list(seen))

    @admin.display(description=gettext_lazy("action"))
    def action(self, operation: Operation) -> str:
        return str(WORDS[Kind(operation.kind)].title)

    @admin.display(description=gettext_lazy("queue"))
    def in_queue(self, operation: Operation) -> str:
        return self.link(Queue, operation.queue_id, operation.queue)

    @admin.display(description=gettext_lazy("state"))
    def state_now(self, operation: Operation) -> str:
        return str(STATES[operation.state])

    @admin.display(description=gettext_lazy("progress"))
    def progress(self, operation: Operation) -> str:
        return _("%(done)s of %(count)s messages") % {
            "done": f"{operation.done + operation.passed:,}",
            "count": f"{operation.count:,}",
        }

    @admin.display(description=gettext_lazy("asked for by"))
    def who(self, operation: Operation) -> str:
        return cut(operation.username, 80)

    @admin.display(description=gettext_lazy("begun at"))
    def begun_at(self, operation: Operation) -> str:
        return moment(operation.created_at)

    def get_urls(self) -> list[URLPattern]:
        views = {"step": self.step, "stop": self.stop, "resume": self.resume}
        own = [
            self.own_path(f"<int:pk>/{name}/", require_POST(view), f"operation_{name}")
            for name, view in views.items()
        ]
        return [*own, *super().get_urls()]

    @patiently
    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """How far it is; its page drives it, if the user may do what it does."""
        if request.method != "GET" or not self.has_view_permission(request):
            raise PermissionDenied
        if not object_id.isdecimal():
            return HttpResponseRedirect(self.url("operation_changelist"))
        operation = get_object_or_404(self.get_queryset(request), pk=object_id)
        ended = operation.finished_at or operation.stepped_at
        taken = (ended - operation.created_at).total_seconds() if ended else 0.0
        return self.render_live(
            request,
            "operation",
            {
                "title": f"{self.action(operation)}: {operation.queue}",
                "operation": operation,
                "state": self.state_now(operation),
                "facts": self._facts(operation),
                "progress": self.progress(operation),
                "percent": 100 * (operation.count - operation.left) // max(1, operation.count),
                "taken": age(taken),
                "may": may(request, Kind(operation.kind)),
                "is_running": operation.state == Operation.RUNNING,
                "is_stopped": operation.state == Operation.STOPPED,
                **(extra_context or {}),
            },
        )

    def _facts(self, operation: Operation) -> list[tuple[str, str]]:
        words = WORDS[Kind(operation.kind)]
        asked = ", ".join(f"{name}={value}" for name, value in operation.filter.items())
        facts = [
            (_("Queue"), self.in_queue(operation)),
            (_("Asked for by"), self.who(operation)),
            (_("Begun at"), moment(operation.created_at)),
            (_("Messages asked about"), f"{operation.count:,}"),
            (_("Up to id"), str(operation.highest_id)),
            (_("Chosen by"), cut(asked, 200) or _("the whole queue")),
            (str(words.done).capitalize(), f"{operation.done:,}"),
            (_("Left alone"), f"{operation.passed:,}"),
        ]
        if operation.target:
            facts.append((_("To queue"), operation.target))
        if operation.rate:
            facts.append((_("Messages a second at most"), f"{operation.rate:g}"))
        if operation.in_flight:
            facts.append((_("In flight"), _("too")))
        if operation.finished_at:
            facts.append((_("Ended at"), moment(operation.finished_at)))
        if operation.error:
            facts.append((_("Error"), cut(operation.error, 500)))
        return facts

    def step(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Go on with it for a moment, unless another process does."""
        operation = self._asked(request, pk)
        Operation.objects.drive(SECONDS, using=operation.queue.alias, only=operation.pk)
        return HttpResponseRedirect(self.url("operation_change", pk))

    def stop(self, request: HttpRequest, pk: int) -> HttpResponse:
        operation = self._asked(request, pk)
        if operation.stop():
            operation.refresh_from_db()
            done = _("stopped after %s") % counted(operation.done)
            self.log_change(request, operation.queue, _log(operation, done))
        return HttpResponseRedirect(self.url("operation_change", pk))

    def resume(self, request: HttpRequest, pk: int) -> HttpResponse:
        operation = self._asked(request, pk)
        if operation.resume():
            self.log_change(request, operation.queue, _log(operation, _("resumed")))
            Operation.objects.drive(SECONDS, using=operation.queue.alias, only=operation.pk)
        return HttpResponseRedirect(self.url("operation_change", pk))

    def _asked(self, request: HttpRequest, pk: int) -> Operation:
        operation = get_object_or_404(self.get_queryset(request), pk=pk)
        if not may(request, Kind(operation.kind)):
            raise PermissionDenied
        return operation


STATES = {
    Operation.RUNNING: gettext_lazy("running"),
    Operation.STOPPED: gettext_lazy("stopped"),
    Operation.DONE: gettext_lazy("done"),
    Operation.FAILED: gettext_lazy("failed"),
}


def listed(ids: Sequence[int]) -> str:
    """
    >>> listed([7, 8])
    '7, 8'
    """
    return ", ".join(map(str, ids[:20])) + (", …" if len(ids) > 20 else "")
