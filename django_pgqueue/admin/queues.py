"""The admin of queues: the overview, a queue's page, its settings, and actions on it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import DurationField, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.text import format_lazy
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_pgqueue.admin import generic
from django_pgqueue.admin.access import allowed, queues_for
from django_pgqueue.admin.base import PageAdmin
from django_pgqueue.admin.bulk_actions import NOT_TYPED
from django_pgqueue.admin.durations import SpanField
from django_pgqueue.admin.groups_page import (
    GroupCancelPage,
    GroupPage,
    GroupPausePage,
    GroupResumePage,
    GroupSettingsPage,
    GroupsPage,
)
from django_pgqueue.admin.overview import name_of
from django_pgqueue.admin.overview_page import AcknowledgePage, OverviewJson, OverviewPage
from django_pgqueue.admin.patience import patiently
from django_pgqueue.admin.queue_actions import PausePage, PurgePage, RedrivePage, ResumePage
from django_pgqueue.admin.queue_page import QueueOverviewPage
from django_pgqueue.admin.send import SendPage
from django_pgqueue.admin.subscriptions import SeekPage, SubscribePage
from django_pgqueue.admin.tasks_page import TasksPage
from django_pgqueue.engine import arguments
from django_pgqueue.errors import QueueBusy, QueueNotFound
from django_pgqueue.models import Message, Queue
from django_pgqueue.tables.queue import ChangeableSettings
from django_pgqueue.templatetags.pgqueue_admin import counted
from django_pgqueue.validators import validate_queue_name

_RETENTION = ("retention", "unique_window", "keep_for", "archive_completed")


class QueueForm(generic.ModelForm):
    """The settings of a queue. Allows the same values as ``create_queue``."""

    class Meta:
        model = Queue
        fields = ["name", *ChangeableSettings.__annotations__]
        error_messages = {
            "max_deliveries": {"min_value": _("Enter 1 or more.")},
            "visibility_timeout": {"min_value": _("Enter at least one second.")},
        }

    def clean_name(self) -> str:
        name: str = self.cleaned_data["name"]
        validate_queue_name(name)
        if Queue.objects.using(self.instance.alias).named(name).exists():
            raise forms.ValidationError(
                _(
                    "A queue of this name exists; upper and lower case are not distinguished. "
                    "Choose another name."
                )
            )
        return name

    def clean_dead_letter_queue(self) -> Queue | None:
        """Refuse a cycle of dead-letter queues."""
        target: Queue | None = self.cleaned_data["dead_letter_queue"]
        passed: list[Queue] = []
        following = target
        while following is not None and following not in passed:
            passed.append(following)
            if following == self.instance:
                raise forms.ValidationError(
                    gettext("A queue cannot be its own dead-letter queue.")
                    if len(passed) == 1
                    else gettext("The dead-letter queues would form a cycle: %s")
                    % " -> ".join(map(self._named, [self.instance, *passed]))
                )
            following = following.dead_letter_queue
        return target

    def _named(self, queue: Queue) -> str:
        """Return the queue's name, or "another queue" if the form does not offer it."""
        offered: Any = self.fields["dead_letter_queue"]
        seen = queue == self.instance or offered.queryset.filter(pk=queue.pk).exists()
        return queue.name if seen else gettext("another queue")


@admin.register(Queue)
class QueueAdmin(PageAdmin):
    """Queues and their current backlog."""

    form = QueueForm
    delete_confirmation_template = "admin/django_pgqueue/drop.html"
    list_page = OverviewPage
    pages = [
        *(OverviewJson, AcknowledgePage, QueueOverviewPage, TasksPage, SendPage),
        *(PausePage, ResumePage, PurgePage, RedrivePage),
        *(GroupsPage, GroupPage, GroupPausePage, GroupResumePage),
        *(GroupSettingsPage, GroupCancelPage, SeekPage, SubscribePage),
    ]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Queue]:
        return queues_for(request)

    def has_add_permission(self, request: HttpRequest) -> bool:
        # A user who may see only some queues could not see a new one.
        return allowed(request) is None and super().has_add_permission(request)

    def heading(self, obj: Any) -> str:
        return gettext("Settings of %s") % str(obj)

    def tools(self, request: HttpRequest, obj: Any) -> list[tuple[str, str]]:
        overview = (gettext("Charts and consumers"), self.url("queue_overview", obj.pk))
        return [overview, *super().tools(request, obj)]

    def formfield_for_dbfield(
        self, db_field: Any, request: Any, **kwargs: Any
    ) -> forms.Field | None:
        if isinstance(db_field, DurationField):
            hint = _("Write 30s, 10min, 2h, 7d or 1d 12h.")
            text = format_lazy("{} {}", db_field.help_text, hint)
            kwargs = {"form_class": SpanField, "help_text": text, **kwargs}
        return super().formfield_for_dbfield(db_field, request, **kwargs)

    def response_post_save_change(self, request: HttpRequest, obj: Any) -> HttpResponseRedirect:
        return HttpResponseRedirect(self.url("queue_overview", obj.pk))

    response_post_save_add = response_post_save_change

    def get_fieldsets(self, request: HttpRequest, obj: Queue | None = None) -> Any:
        is_subscription = obj is not None and obj.source_id is not None
        others = arguments.NOT_OF_SUBSCRIPTIONS if is_subscription else arguments.OF_SUBSCRIPTIONS
        names = [name for name in ChangeableSettings.__annotations__ if name not in others]
        limits = [name for name in arguments.LIMITS if name in names]
        retention = [name for name in _RETENTION if name in names]
        delivery = [name for name in names if name not in {"paused", *limits, *retention}]
        seen = allowed(request)
        if obj and seen is not None and obj.dead_letter_queue_id not in {None, *seen}:
            # The user may not see the dead-letter queue. Without the field, saving keeps its value.
            delivery.remove("dead_letter_queue")
        return [
            (None, {"fields": ["name", "paused"]}),
            (_("Delivery"), {"fields": delivery}),
            (_("Limits"), {"fields": limits}),
            (_("Retention"), {"fields": retention}),
        ]

    def get_readonly_fields(self, request: HttpRequest, obj: Queue | None = None) -> list[str]:
        # Senders and consumers use the name, so it cannot change.
        return ["name"] if obj else []

    def get_deleted_objects(
        self, objs: Iterable[Queue], request: HttpRequest
    ) -> tuple[list[Any], dict[str, int], set[str], list[str]]:
        """Count the rows that are deleted with the queues. Django would list each of them."""
        queues = list(objs)
        going: list[Any] = []
        live = archived = 0
        for queue in queues:
            held: list[str] = []
            with suppress(QueueNotFound):  # dropped meanwhile
                backlog = Message.objects.metrics(queue)
                live += backlog.length
                archived += backlog.archived
                held = [
                    gettext("%s in the queue") % counted(backlog.length, exact=backlog.exact),
                    gettext("%s in the archive") % counted(backlog.archived, exact=backlog.exact),
                ]
            going += [gettext("Queue: %s") % queue, held]
        seen = allowed(request)
        may = all(self.has_delete_permission(request, queue) for queue in queues)
        return (
            going,
            {
                gettext("queues"): len(queues),
                gettext("messages"): live,
                gettext("archived messages"): archived,
            },
            set() if may else {str(self.opts.verbose_name)},
            [
                gettext("Queue: %(source)s, whose dead-letter queue is %(target)s")
                % {
                    "source": name_of(source, None if seen is None else seen.values()),
                    "target": source.dead_letter_queue,
                }
                for source in Queue.objects.filter(dead_letter_queue__in=queues).select_related(
                    "dead_letter_queue"
                )
            ],
        )

    @patiently
    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if request.method == "POST":
            queue = self.get_object(request, object_id)
            if queue is not None and request.POST.get("typed", "").strip() != queue.name:
                self.message_user(request, NOT_TYPED, messages.ERROR)
                return HttpResponseRedirect(request.get_full_path())
        try:
            return super().delete_view(request, object_id, extra_context)
        except QueueBusy as error:
            self.message_user(request, str(error), messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())
