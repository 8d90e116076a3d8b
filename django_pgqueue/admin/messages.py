"""The admin of messages, queued and archived: the list, a message's page, and actions."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db.models import QuerySet
from django.http import (
    HttpRequest,
    HttpResponse,
)
from django.template.defaultfilters import filesizeformat
from django.utils.html import format_html, format_html_join
from django.utils.http import urlencode
from django.utils.safestring import mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue.admin import places
from django_pgqueue.admin.base import ReadOnlyAdmin
from django_pgqueue.admin.bulk_actions import HELD, WORDS, may
from django_pgqueue.admin.failures import fingerprint
from django_pgqueue.admin.failures_page import FailurePage, FailuresPage, offers
from django_pgqueue.admin.masking import mask_text
from django_pgqueue.admin.messages_page import ACTIONS, PREVIEW, MessagesPage
from django_pgqueue.admin.overview import DEAD_AFTER
from django_pgqueue.admin.places import Place
from django_pgqueue.admin.resend import ResendPage
from django_pgqueue.admin.search import Search
from django_pgqueue.admin.timeline import dead_letter, drawn, steps
from django_pgqueue.admin.why import why
from django_pgqueue.admin.wording import (
    EMPTY,
    cut,
    moment,
    preformatted,
    pretty_json,
    visible,
)
from django_pgqueue.models import ArchivedMessage, Attempt, Message, Process, Queue
from django_pgqueue.models.bulk import Kind

__all__ = ["MessageAdmin"]


@admin.register(Message)
class MessageAdmin(ReadOnlyAdmin):
    """All messages, queued or archived."""

    readonly_fields = [
        "in_queue",
        "state",
        "deliveries",
        "attempts",
        "life",
        "came_from",
        "why",
        "outcome",
        "error",
        "result",
        "failed_attempts",
        "group",
        "around",
        "dedup",
        "pretty_headers",
        "pretty_body",
        "log",
    ]
    change_form_template = "admin/django_pgqueue/message.html"
    list_page = MessagesPage
    pages = [ResendPage, FailuresPage, FailurePage]
    fieldsets = [
        (
            None,
            {"fields": [("in_queue", "state", "deliveries", "attempts"), "why", "life", "outcome"]},
        ),
        (gettext_lazy("Failure"), {"fields": ["came_from", "error", "failed_attempts"]}),
        (
            gettext_lazy("Message"),
            {
                "fields": [
                    "pretty_body",
                    "pretty_headers",
                    "result",
                    ("priority", "group", "dedup"),
                    "around",
                    "log",
                ]
            },
        ),
    ]

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Leave out the fields that are empty for this message."""
        if obj is None:
            return self.fieldsets
        failed = obj.died or getattr(obj.outcome, "error", None) or obj.failed
        absent = {
            *([] if obj.outcome else ["outcome"]),
            *([] if obj.standing else ["why"]),
            *([] if obj.died else ["came_from"]),
            *([] if obj.failed else ["failed_attempts"]),
            *([] if getattr(obj.outcome, "result", None) is not None else ["result"]),
            *([] if obj.group_key else ["around"]),
            *([] if obj.logged else ["log"]),
        }
        return [
            (name, {"fields": [each for each in options["fields"] if each not in absent]})
            for place, (name, options) in enumerate(self.fieldsets)
            if failed or place != 1
        ]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Message]:
        # Bodies can be large. _add_previews reads only the beginnings for the rows of a page.
        return super().get_queryset(request).defer("body", "headers")

    # The list

    # Actions

    def prepare(self, rows: Sequence[Message]) -> None:
        """Attach each message's place in the queue and its outcome.

        Places are read before outcomes, so that a message archived in between is found.
        """
        if not rows:
            return
        using = rows[0]._state.db or "default"
        of_queues = {
            "pk__in": [message.pk for message in rows],
            "queue_id__in": {message.queue_id for message in rows},
        }
        standing = places.standing(rows, using=using)
        outcomes = {
            outcome.pk: outcome
            for outcome in ArchivedMessage.objects.using(using).filter(**of_queues)
        }
        for message in rows:
            message.standing = standing.get(message.pk)  # type: ignore[attr-defined]
            message.outcome = outcomes.get(message.pk)  # type: ignore[attr-defined]

    # One message

    def look_up(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Find a message in the queue that the address names, or else in all queues."""
        named = Search.of({"queue": request.GET.get("queue", "")}, None).queues
        if named:
            with suppress(Message.DoesNotExist, ValueError):
                return self.get_queryset(request).get(pk=object_id, queue_id=named[0])
        return super().look_up(request, object_id, from_field)

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Any:
        found = super().get_object(request, object_id, from_field)
        if found is not None:
            using = found._state.db
            found.died = dead_letter(found.contents.headers)
            found.sources = self.queues(request)
            found.surroundings = places.surroundings(found, DEAD_AFTER)
            found.failed = Attempt.objects.of(found.pk, using=using)
            found.processes = Process.objects.using(using).in_bulk(
                {each.process_id for each in found.failed if each.process_id}
            )
            logged = ContentType.objects.get_for_model(Message)
            entries = LogEntry.objects.filter(content_type_id=logged.pk, object_id=str(found.pk))
            found.logged = list(entries.select_related("user").order_by("-action_time")[:20])
        return found

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        offers = self._offers(request, context["original"])
        return super().render_change_form(request, {**offers, **context}, *args, **kwargs)

    def _offers(self, request: HttpRequest, message: Any) -> dict[str, Any]:
        """Template context: actions for this message, and a link to similar failures."""
        live = message.standing is not None
        kinds = [
            (name, kind)
            for name, kind in ACTIONS.items()
            if kind.is_of_archive is not live
            and (kind is not Kind.REDRIVE or message.died is not None)
            and may(request, kind)
        ]
        group = None
        why = message.died.error if message.died and live else None
        if why or getattr(message.outcome, "state", "") == Place.FAILED.name:
            group = fingerprint(why or message.outcome.error or "")
        return {
            "offers": [(name, WORDS[kind].title) for name, kind in kinds],
            "offers_held": live and any(kind in HELD for _name, kind in kinds),
            "query": urlencode({"q": message.pk, "queue": message.queue_id}),
            "group_url": group and self.url("message_failure", group),
            "group_offers": offers(request) if group else [],
            "may_resend": ResendPage.permits(self, request),
        }

    # Cells

    @admin.display(description=gettext_lazy("delivery"))
    def why(self, message: Any) -> str:
        """Why the message is not delivered now."""
        if message.standing is None:
            return EMPTY
        return why(message, message.standing, message.surroundings, self.message_link)

    @admin.display(description=gettext_lazy("timeline"))
    def life(self, message: Any) -> str:
        return drawn(list(steps(message, message.standing, message.outcome, message.died)))

    @admin.display(description=gettext_lazy("dead letter from"))
    def came_from(self, message: Any) -> str:
        if message.died is None or message.died.source is None:
            return EMPTY
        source = message.sources.filter(name=message.died.source).first()
        if source is None:
            return visible(message.died.source)
        times = message.died.times or 1
        return format_html(
            "{}{}",
            self.link(Queue, source.pk, source),
            _(", for the %s. time") % times if times > 1 else "",
        )

    @admin.display(description=gettext_lazy("in its group"))
    def around(self, message: Any) -> str:
        """Links to the previous and next message of its group."""
        if message.group_key is None or message.standing is None:
            return EMPTY
        found = message.surroundings
        before = [found.head] if found.head not in (None, message.pk) else []
        before += [pk for pk in found.before if pk not in before]
        after = [pk for pk in found.after if pk != found.head]

        def linked(ids: list[int]) -> str:
            links = ((self.message_link(pk, message.queue_id),) for pk in ids)
            return format_html_join(", ", "{}", links) or EMPTY

        return format_html(
            _("before it: {}; after it: {}{}"), linked(before), linked(after), ", …" * found.more
        )

    @admin.display(description=gettext_lazy("queue"))
    def in_queue(self, message: Message) -> str:
        return self.link(Queue, message.queue_id, message.queue)

    @admin.display(description=gettext_lazy("state"))
    def state(self, message: Any) -> str:
        if message.standing:
            return str(message.standing.place)
        return str(Place[message.outcome.state]) if message.outcome else EMPTY

    @admin.display(description=gettext_lazy("deliveries"))
    def deliveries(self, message: Any) -> int:
        return getattr(message.standing or message.outcome, "read_ct", 0)

    @admin.display(description=gettext_lazy("attempts"))
    def attempts(self, message: Any) -> int:
        return getattr(message.standing or message.outcome, "attempts", 0)

    @admin.display(description=gettext_lazy("readable at"))
    def readable_at(self, message: Any) -> str:
        if message.standing is None:
            return moment(message.outcome.archived_at) if message.outcome else EMPTY
        if message.standing.place is Place.WAITING:
            return moment(message.standing.vt)
        return moment(message.standing.vt or message.enqueued_at)

    @admin.display(description=gettext_lazy("sent at"))
    def sent_at(self, message: Message) -> str:
        return moment(message.enqueued_at)

    @admin.display(description=gettext_lazy("outcome"))
    def outcome(self, message: Any) -> str:
        if message.outcome is None:
            return EMPTY
        return _("%(state)s at %(moment)s") % {
            "state": self.state(message),
            "moment": moment(message.outcome.archived_at),
        }

    @admin.display(description=gettext_lazy("error"))
    def error(self, message: Any) -> str:
        """The last error: from the archive, or for a dead letter from its headers."""
        if message.outcome is not None and message.outcome.error:
            return preformatted(message.outcome.error)
        return preformatted(message.died.error if message.died else None)

    @admin.display(description=gettext_lazy("body"))
    def preview(self, message: Any) -> str:
        text, size = message.beginning
        if text is not None:
            return cut(mask_text(text), PREVIEW)
        return EMPTY if size is None else _("%s in the database") % filesizeformat(size)

    @admin.display(description=gettext_lazy("group"))
    def group(self, message: Message) -> str:
        return visible(message.group_key or EMPTY)

    @admin.display(description=gettext_lazy("dedup key"))
    def dedup(self, message: Message) -> str:
        return visible(message.dedup_key or EMPTY)

    @admin.display(description=gettext_lazy("headers"))
    def pretty_headers(self, message: Any) -> str:
        return pretty_json(message.contents.headers)

    @admin.display(description=gettext_lazy("body"))
    def pretty_body(self, message: Any) -> str:
        return str(message.contents.body)

    @admin.display(description=gettext_lazy("result"))
    def result(self, message: Any) -> str:
        return pretty_json(message.outcome.result) if message.outcome else EMPTY

    @admin.display(description=gettext_lazy("failed attempts"))
    def failed_attempts(self, message: Any) -> str:
        """A row per failed attempt: worker, error, traceback. The last row is expanded."""
        last = message.failed[-1] if message.failed else None
        rows = format_html_join(
            "",
            "<details{}><summary>{} <time>{}</time> {} <b>{}</b>: {}</summary>{}</details>",
            (
                (
                    mark_safe(" open") if each is last else "",
                    _("Attempt %s") % each.attempt,
                    moment(each.at),
                    self._worker(message, each),
                    visible(each.error_class),
                    cut(each.message, 200),
                    preformatted(each.traceback),
                )
                for each in message.failed
            ),
        )
        return format_html('<div class="pgqueue-attempts">{}</div>', rows)

    def _worker(self, message: Any, attempt: Attempt) -> str:
        if attempt.process_id is None:
            return ""
        process = message.processes.get(attempt.process_id)
        return str(process) if process else _("process %s") % attempt.process_id

    @admin.display(description=gettext_lazy("log"))
    def log(self, message: Any) -> str:
        """The log of users' actions on this message."""
        return format_html(
            '<ul class="pgqueue-log">{}</ul>',
            format_html_join(
                "",
                "<li><time>{}</time> {}: {}</li>",
                (
                    (moment(each.action_time), each.user, visible(each.get_change_message()))
                    for each in message.logged
                ),
            ),
        )

    # Sending it again

    # Failures
