"""The page that edits a message's body and headers, and sends them as a new message."""

from __future__ import annotations

import json
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue.admin.contents import Contents
from django_pgqueue.admin.json_text import JSONText
from django_pgqueue.admin.masking import mask, unmasked
from django_pgqueue.admin.page import Page
from django_pgqueue.admin.timeline import HEADER
from django_pgqueue.admin.wording import LONGEST
from django_pgqueue.errors import PgQueueError
from django_pgqueue.models import Message, Queue

__all__ = ["ResendPage"]


class ResendForm(forms.Form):
    """Edit a copy of a message. Masked values are sent unchanged."""

    queue = forms.ModelChoiceField(Queue.objects.none(), label=gettext_lazy("Queue"))
    body = JSONText(required=False, strip=False, label=gettext_lazy("Body"))
    headers = JSONText(required=False, label=gettext_lazy("Headers"))
    group = forms.CharField(required=False, max_length=255, label=gettext_lazy("Group"))
    priority = forms.IntegerField(min_value=-100, max_value=100, label=gettext_lazy("Priority"))

    def __init__(self, message: Message, queues: QuerySet[Queue], data: Any = None) -> None:
        contents = Contents.of(message.pk, message.queue_id, using=message._state.db)
        self.too_large = contents.length > LONGEST
        self.original = None if self.too_large else json.loads(contents.text or "null")
        headers = contents.headers if isinstance(contents.headers, dict) else {}
        self.headers_were = {key: each for key, each in headers.items() if key != HEADER}
        initial = {
            "queue": message.queue_id,
            "body": _text(self.original),
            "headers": _text(self.headers_were) if self.headers_were else "",
            "group": message.group_key or "",
            "priority": message.priority,
        }
        super().__init__(data, initial=initial, label_suffix="")
        self.fields["queue"].queryset = queues.order_by("name")  # type: ignore[attr-defined]

    def clean_headers(self) -> dict[str, Any] | None:
        headers = self.cleaned_data["headers"]
        if headers is not None and not isinstance(headers, dict):
            raise forms.ValidationError(_('Write headers as an object, like {"trace": "abc"}.'))
        return headers

    def clean(self) -> dict[str, Any]:
        if self.too_large:
            raise forms.ValidationError(_("The body is too large to edit in a page."))
        return self.cleaned_data

    def send(self) -> int:
        """Send the copy. Returns the id of the new message."""
        given = self.cleaned_data
        headers = unmasked(given["headers"], self.headers_were)
        return Message.objects.send(
            given["queue"],
            unmasked(given["body"], self.original),
            headers=headers or None,
            group=given["group"] or None,
            priority=given["priority"],
        )


def _text(value: Any) -> str:
    return json.dumps(mask(value), indent=2, ensure_ascii=False)


class ResendPage(Page):
    """Edit a message's body and headers, and send them as a new one."""

    name = "message_resend"
    route = "<int:pk>/resend/"
    permission = "send_message"
    template = "resend"

    def answer(self, pk: int) -> HttpResponse:
        if not self.owner.has_view_permission(self.request):
            raise PermissionDenied
        message = self.owner.look_up(self.request, str(pk))
        if message is None:
            raise Http404
        form = ResendForm(message, self.owner.queues(self.request), self.request.POST or None)
        if self.request.method == "POST" and form.is_valid():
            try:
                sent = form.send()
            except PgQueueError as error:
                form.add_error(None, str(error))
            else:
                queue = form.cleaned_data["queue"]
                self.owner.log_change(self.request, message, _("Sent as new: message %s.") % sent)
                self.owner.log_change(self.request, queue, _("Sent message %s by hand.") % sent)
                self.owner.message_user(
                    self.request, _("Sent to %s as message %s.") % (queue, sent), messages.SUCCESS
                )
                return HttpResponseRedirect(self.url("message_change", sent, queue=queue.pk))
        return self.render(
            {
                "title": _("Edit message %s and send it as new") % pk,
                "form": form,
                "back": self.url("message_change", pk, queue=message.queue_id),
            },
        )
