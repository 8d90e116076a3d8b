"""The pages that make and move subscriptions, and what other pages show of them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from django import forms
from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_pgqueue.admin.access import allowed
from django_pgqueue.admin.page import QueuePage
from django_pgqueue.admin.patience import unlimited
from django_pgqueue.admin.queries import ask
from django_pgqueue.engine.subscriptions.positions import EARLIEST, NOW
from django_pgqueue.errors import PgQueueError
from django_pgqueue.models import Queue
from django_pgqueue.queues.bound import bound_to
from django_pgqueue.types import Lag
from django_pgqueue.validators import validate_queue_name

#: Maximum number of unread messages that a page counts for a subscription.
MOST_COUNTED = 1000

#: What the field ``start`` offers besides now and earliest.
_MOMENT, _ID = "moment", "id"


class Reader(NamedTuple):
    """A subscription on its source's page: its lag (None: its position is lost)."""

    queue: Queue
    lag: Lag | None
    #: Whether it is further behind than its age limit allows.
    is_late: bool


def lags_of(queues: Sequence[Queue]) -> dict[int, Lag | None]:
    """Return the lags of those queues that are subscriptions, by id."""
    return {queue.pk: queue.lag(MOST_COUNTED) for queue in queues if queue.source_id is not None}


def readers(queues: Sequence[Queue]) -> list[Reader]:
    """Return these subscriptions with their lags."""
    lags = lags_of(queues)
    return [
        Reader(
            each,
            lag := lags[each.pk],
            lag is not None and (lag.seconds or 0) > each.longest_wait,
        )
        for each in queues
    ]


def kept_by(
    message: Any, link: Callable[[int, int], str], seen: Collection[int] | None
) -> list[tuple[str, Any]]:
    """Return what became of a source's message in its subscriptions: (name, state or link).

    ``seen`` are the ids of the queues that the user may see; None: all.
    """
    found = ask("kept_by", {"queue_id": message.queue_id, "id": message.pk})
    told: list[tuple[str, Any]] = []
    for pk, name, state, is_own in found:
        if seen is None or pk in seen:
            text = _STATES.get(state, state.lower())
            told.append((f"{name}: {text}", link(message.pk, pk) if is_own else ""))
    return told


_STATES = {
    "UNREAD": _("not read yet"),
    "READ": _("read"),
    "LOST": _("position lost"),
    "IN_FLIGHT": _("in flight"),
    "PENDING": _("ready"),
    "PROCESSING": _("in flight"),
    "RETRYABLE": _("waits for a retry"),
    "SCHEDULED": _("delayed"),
    "COMPLETED": _("completed"),
    "FAILED": _("failed"),
    "EXPIRED": _("expired"),
    "CANCELLED": _("cancelled"),
    "REPLACED": _("replaced"),
}


class _Start(forms.Form):
    """A place in the source."""

    start = forms.ChoiceField(
        label=_("Start"),
        choices=[
            (NOW, _("behind all messages that are committed")),
            (EARLIEST, _("before all messages that the source has")),
            (_MOMENT, _("at messages sent then or later")),
        ],
        widget=forms.RadioSelect,
    )
    moment = forms.DateTimeField(
        required=False,
        label=_("Moment"),
        help_text=_("Such as 2026-11-28 12:00, in the time zone of this site."),
    )

    def clean(self) -> dict[str, Any]:
        given: dict[str, Any] = super().clean() or self.cleaned_data
        if given.get("start") == _MOMENT and not given.get("moment") and not self.errors:
            self.add_error("moment", gettext("Enter a moment."))
        return given

    @property
    def place(self) -> str | dt.datetime | int:
        """Where to start, as ``seek`` and ``subscribe`` take it."""
        start: str = self.cleaned_data["start"]
        place: str | dt.datetime | int = self.cleaned_data.get(start, start)
        return place


class SeekForm(_Start):
    """Where to move a subscription."""

    id = forms.IntegerField(
        required=False, min_value=1, max_value=2**63 - 1, label=_("Id of a message")
    )

    def __init__(self, data: Any) -> None:
        super().__init__(data)
        start: Any = self.fields["start"]
        start.choices = [
            *start.choices,
            (_ID, _("at messages with this id or a higher one")),
        ]

    def clean(self) -> dict[str, Any]:
        given = super().clean()
        if given.get("start") == _ID and not given.get("id") and not self.errors:
            self.add_error("id", gettext("Enter the id of a message."))
        return given


class SubscribeForm(_Start):
    """A new subscription. Its other settings can be changed afterwards."""

    name = forms.CharField(
        max_length=63, label=_("Name"), help_text=Queue._meta.get_field("name").help_text
    )
    field_order = ["name", "start", "moment"]

    def __init__(self, data: Any) -> None:
        super().__init__(data, initial={"start": NOW})

    def clean_name(self) -> str:
        name: str = self.cleaned_data["name"]
        validate_queue_name(name)
        if Queue.objects.using(None).named(name).exists():
            raise forms.ValidationError(
                gettext(
                    "A queue of this name exists; upper and lower case are not distinguished. "
                    "Choose another name."
                )
            )
        return name


class SeekPage(QueuePage):
    """Moves a subscription, forward or back."""

    name = "queue_seek"
    route = "<int:pk>/seek/"
    permission = "seek_queue"
    template = "subscription"

    def answer(self, pk: int) -> HttpResponse:
        queue, back = self.queue(pk), self.url("queue_overview", pk)
        if queue.source_id is None:
            self.tell(gettext("Queue %s is no subscription.") % queue, messages.ERROR)
            return HttpResponseRedirect(back)
        form = SeekForm(self.request.POST or None)
        if form.is_valid():
            bound_to(queue).seek(form.place)
            self.tell(gettext("Moved %s. The next read begins there.") % queue)
            return HttpResponseRedirect(back)
        help_texts = [
            gettext(
                "Back, the subscription gets messages again, also those that were handled; what "
                "is in flight or waits for a retry comes again from there."
            ),
            gettext(
                "Forward, it leaves messages out; what is in flight or waits for a retry stays."
            ),
        ]
        return self.render(
            {
                "title": gettext("Move %s") % queue,
                "back": back,
                "form": form,
                "help_texts": help_texts,
                "does": gettext("Move"),
            }
        )


class SubscribePage(QueuePage):
    """Makes a subscription to a queue."""

    name = "queue_subscribe"
    route = "<int:pk>/subscribe/"
    permission = "add_queue"
    template = "subscription"

    @classmethod
    def permits(cls, owner: Any, request: Any) -> bool:
        # A user who may see only some queues could not see a new one.
        return allowed(request) is None and super().permits(owner, request)

    def answer(self, pk: int) -> HttpResponse:
        queue, back = self.queue(pk), self.url("queue_overview", pk)
        if queue.source_id is not None:
            told = gettext("Queue %s is a subscription: subscribe to its source.") % queue
            self.tell(told, messages.ERROR)
            return HttpResponseRedirect(back)
        form = SubscribeForm(self.request.POST or None)
        if form.is_valid():
            try:
                # An index is built without blocking senders, which needs to be no transaction.
                with unlimited(queue.alias):
                    made, _differs = Queue.subscribe(
                        form.cleaned_data["name"], queue, form.place, queue.alias
                    )
            except PgQueueError as error:
                form.add_error(None, str(error))
            else:
                self.tell(gettext("Made subscription %s.") % made)
                return HttpResponseRedirect(self.url("queue_change", made.pk))
        help_texts = [
            gettext(
                "A subscription is a queue of its own, which reads the messages of %s without a "
                "copy of each."
            )
            % queue
        ]
        return self.render(
            {
                "title": gettext("Subscribe to %s") % queue,
                "back": back,
                "form": form,
                "help_texts": help_texts,
                "does": gettext("Subscribe"),
            }
        )
