"""The page that sends a message, or an edited copy of one."""

from __future__ import annotations

import json
from typing import Any

from django import forms
from django.contrib import messages
from django.db import transaction
from django.db.models import QuerySet
from django.http import Http404, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_pgqueue.admin.access import queues_for
from django_pgqueue.admin.contents import find_message, is_large
from django_pgqueue.admin.durations import SpanField
from django_pgqueue.admin.json_text import JSONText
from django_pgqueue.admin.masking import mask, unmasked
from django_pgqueue.admin.once import Once
from django_pgqueue.admin.page import QueuePage
from django_pgqueue.admin.timeline import HEADER
from django_pgqueue.engine.audit.entry import record
from django_pgqueue.errors import InvalidArgument, InvalidMessage
from django_pgqueue.flows.batches import HEADER as BATCH
from django_pgqueue.models import Message, Queue
from django_pgqueue.types import was_skipped


class SendForm(forms.Form):
    """The form of a message to send. It is filled in from the message ``copied``, if any."""

    queue = forms.ModelChoiceField(Queue.objects.none(), label=_("Queue"))
    body = JSONText(required=False, strip=False, label=_("Body"), help_text=_("JSON. Empty: null."))
    headers = JSONText(
        required=False, label=_("Headers"), help_text=_("A JSON object. Empty: no headers.")
    )
    delay = SpanField(
        required=False, label=_("Delay"), help_text=_("Such as 10min. Empty: no delay.")
    )
    expires = SpanField(
        required=False,
        label=_("Expires"),
        help_text=_(
            "How long after the send the message may be handled, such as 10min. "
            "Empty: it never expires."
        ),
    )
    priority = forms.IntegerField(
        required=False, min_value=-100, max_value=100, initial=0, label=_("Priority")
    )
    group = forms.CharField(required=False, empty_value=None, max_length=255, label=_("Group"))
    unique = forms.CharField(
        required=False, empty_value=None, max_length=255, label=_("Unique key")
    )

    def __init__(self, queues: QuerySet[Queue], queue: Queue, copied: Any, data: Any) -> None:
        # A copy of a subscription's message goes to its source.
        initial: dict[str, Any] = {"queue": queue.source_id or queue.pk}
        self.body_was: Any = None
        self.headers_was: Any = None
        if copied is not None:
            self.body_was = json.loads(copied.text or "null")
            headers = copied.headers if isinstance(copied.headers, dict) else {}
            self.headers_was = {
                key: value for key, value in headers.items() if key not in (HEADER, BATCH)
            } or None
            initial |= {"group": copied.group_key, "priority": copied.priority}
            initial["body"] = JSONText.shown(mask(self.body_was))
            initial["headers"] = JSONText.shown(mask(self.headers_was))
        super().__init__(data, initial=initial)
        self.target = queue
        may_be_sent_to = queues.filter(source=None).order_by("name")
        self.fields["queue"].queryset = may_be_sent_to  # type: ignore[attr-defined]
        if copied is None:
            del self.fields["queue"]

    def clean_headers(self) -> dict[str, Any] | None:
        headers: Any = self.cleaned_data["headers"]
        if headers is not None and not isinstance(headers, dict):
            raise forms.ValidationError(
                gettext("Enter a JSON object, such as %s.") % '{"trace": "abc"}'
            )
        return headers

    def clean_priority(self) -> int:
        return self.cleaned_data["priority"] or 0

    def send(self, once: Once) -> int:
        """Send the message, with masks replaced by the copied message's secrets. Return its id."""
        given = dict(self.cleaned_data)
        if given["unique"] is None:
            given |= once.options
        given["body"] = unmasked(given["body"], self.body_was)
        given["headers"] = unmasked(given["headers"], self.headers_was)
        self.target = given.pop("queue", self.target)
        return Message.objects.send(self.target, **given)


class SendPage(QueuePage):
    """The page with the form. ``?copy=4711`` fills it in from message 4711 of the queue."""

    name = "queue_send"
    route = "<int:pk>/send/"
    permission = "send_message"
    template = "send"

    def answer(self, pk: int) -> HttpResponse:
        queue = self.queue(pk)
        title, back = gettext("Send a message to %s") % queue, self.url("queue_overview", pk)
        copied = self._copied(queue)
        if copied is not None:
            title = gettext("Send a copy of message %s") % copied.pk
            back = self.url("message_change", copied.pk, queue=pk)
            if is_large(copied):
                self.tell(
                    gettext(
                        "The message was not copied: its body is too large to edit here. "
                        "Send a copy with Python instead."
                    ),
                    messages.ERROR,
                )
                return HttpResponseRedirect(back)
        if copied is None and queue.source_id is not None:
            told = gettext("Queue %s is a subscription: send to its source.") % queue
            self.tell(told, messages.ERROR)
            return HttpResponseRedirect(back)
        once = Once(self.request)
        if once.sent is not None:
            number, sent = once.sent
            self._tell_repeated(number, sent)
            return HttpResponseRedirect(self.url("queue_overview", number))
        form = SendForm(queues_for(self.request), queue, copied, self.request.POST or None)
        if form.is_valid():
            try:
                sent = self._send(form, once, copied)
            except (InvalidArgument, InvalidMessage) as error:
                form.add_error(None, str(error))
            else:
                if was_skipped(sent) and form.cleaned_data["unique"] is None:
                    self._tell_repeated(form.target.pk, sent)
                else:
                    self._tell_sent(form.target, sent)
                    if not was_skipped(sent):
                        once.remember(form.target.pk, sent)
                return HttpResponseRedirect(self.url("queue_overview", form.target.pk))
        return self.render({"title": title, "back": back, "form": form, "copied": copied})

    @staticmethod
    def _send(form: SendForm, once: Once, copied: Any) -> int:
        """Send the message, and record that in the audit log."""
        with transaction.atomic(using=form.target.alias):
            sent = form.send(once)
            if not was_skipped(sent):
                target = form.target
                given = {"ids": [sent], "copy_of": copied and copied.pk}
                record(target.opened.runner, "send", (target.pk, target.name), given, 1)
        return sent

    def _copied(self, queue: Queue) -> Any:
        """Return the message to copy, or None. Raise Http404 if the user may not see it."""
        if "copy" not in self.request.GET:
            return None
        copied = find_message(self.request, self.request.GET["copy"])
        may_view = self.request.user.has_perm("django_pgqueue.view_message")
        if copied is None or not may_view or copied.queue != queue:
            raise Http404
        return copied

    def _tell_repeated(self, queue_id: int, sent: int) -> None:
        link = self.owner.message_link(sent, queue_id)
        self.tell(Once.repeated(link), messages.WARNING)

    def _tell_sent(self, queue: Queue, sent: int) -> None:
        told = gettext("Nothing was sent: message {id} of {queue} has this unique key.")
        if not was_skipped(sent):
            told = gettext("Sent message {id} to {queue}.")
        link = self.owner.message_link(sent, queue.pk)
        self.tell(format_html(told, id=link, queue=queue))
