"""The pages that act on one queue: send, pause, resume, purge and redrive."""

from __future__ import annotations

from django import forms
from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect
from django.utils.html import format_html
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_pgqueue.admin.bulk_actions import Job, perform
from django_pgqueue.admin.json_text import JSONText
from django_pgqueue.admin.page import QueuePage
from django_pgqueue.admin.search import Backlog
from django_pgqueue.admin.spans import SpanField
from django_pgqueue.errors import InvalidArgument, InvalidMessage
from django_pgqueue.models import Message, Queue
from django_pgqueue.models.bulk import Kind
from django_pgqueue.models.columns import NOW

__all__ = ["PausePage", "PurgePage", "RedrivePage", "ResumePage", "SendPage"]


class SendForm(forms.Form):
    """A message to send."""

    body = JSONText(
        required=False, label=_("Body"), help_text=_("JSON; empty: null."), widget=forms.Textarea
    )
    headers = JSONText(
        required=False, label=_("Headers"), help_text=_("A JSON object, or nothing.")
    )
    delay = SpanField(required=False, label=_("Delay"), help_text=_("Like 10min; empty: none."))
    priority = forms.IntegerField(
        required=False, min_value=-100, max_value=100, initial=0, label=_("Priority")
    )
    group = forms.CharField(required=False, empty_value=None, max_length=255, label=_("Group"))
    dedup_key = forms.CharField(
        required=False, empty_value=None, max_length=255, label=_("Dedup key")
    )

    def clean_priority(self) -> int:
        return self.cleaned_data["priority"] or 0


class SendPage(QueuePage):
    """A form for one message."""

    name = "queue_send"
    route = "<int:pk>/send/"
    permission = "send_message"
    template = "send"

    def answer(self, pk: int) -> HttpResponse:
        queue = self.queue(pk)
        form = SendForm(self.request.POST or None)
        if form.is_valid():
            before = Queue.objects.values_list(NOW, flat=True).get(pk=pk)
            try:
                sent = Message.objects.send(queue, **form.cleaned_data)
            except (InvalidArgument, InvalidMessage) as error:
                form.add_error(None, str(error))
            else:
                new = Message.objects.filter(pk=sent, queue=queue, enqueued_at__gte=before)
                if new.exists():
                    self.owner.log_change(self.request, queue, f"Sent message {sent}.")
                    told = gettext("Sent message {id} to {queue}.")
                else:
                    told = gettext("Nothing was sent: message {id} of {queue} has this dedup key.")
                link = self.owner.message_link(sent, queue.pk)
                self.owner.message_user(
                    self.request, format_html(told, id=link, queue=queue), messages.SUCCESS
                )
                return HttpResponseRedirect(self.url("queue_overview", pk))
        context = {
            "title": gettext("Send a message to %s") % queue,
            "form": form,
            "back": self.url("queue_overview", pk),
        }
        return self.render(context)


class PausePage(QueuePage):
    """Pauses a queue. Answers a POST only."""

    name = "queue_pause"
    route = "<int:pk>/pause/"
    permission = "pause_queue"
    is_post = True
    paused = True

    def answer(self, pk: int) -> HttpResponse:
        queue = self.queue(pk)
        if queue.paused != self.paused:
            queue.paused = self.paused
            queue.save(update_fields=["paused"])
            self.owner.log_change(self.request, queue, "Paused." if self.paused else "Resumed.")
        done = (
            gettext("Paused %s: consumers leave it alone.")
            if self.paused
            else gettext("Resumed %s.")
        )
        self.owner.message_user(self.request, done % queue, messages.SUCCESS)
        return HttpResponseRedirect(self._back() or self.url("queue_changelist"))

    def _back(self) -> str | None:
        """The URL to return to: the posted ``back``, if it is on this site."""
        back = self.request.POST.get("back", "")
        safe = url_has_allowed_host_and_scheme(
            back, allowed_hosts={self.request.get_host()}, require_https=self.request.is_secure()
        )
        return back if safe else None


class ResumePage(PausePage):
    """Resumes a queue."""

    name = "queue_resume"
    route = "<int:pk>/resume/"
    paused = False


class PurgePage(QueuePage):
    """Asks for confirmation, then deletes the messages in the queue."""

    name = "queue_purge"
    route = "<int:pk>/purge/"
    permission = "purge_queue"

    def answer(self, pk: int) -> HttpResponse:
        queue = self.queue(pk)
        return perform(
            self.owner,
            self.request,
            [Job(Kind.PURGE, Backlog(queue.pk))],
            back=self.url("queue_overview", pk),
            title=gettext("Purge %s") % queue,
            typed=queue.name,
        )


class RedrivePage(QueuePage):
    """Asks for confirmation, then redrives the dead letters in the queue."""

    name = "queue_redrive"
    route = "<int:pk>/redrive/"
    permission = "redrive_message"

    def answer(self, pk: int) -> HttpResponse:
        queue = self.queue(pk)
        return perform(
            self.owner,
            self.request,
            [Job(Kind.REDRIVE, Backlog(queue.pk))],
            back=self.url("queue_overview", pk),
            title=gettext("Redrive %s") % queue,
            ask=True,
        )
