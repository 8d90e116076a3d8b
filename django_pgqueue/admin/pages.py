"""Lists that stay fast however many rows there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import django
from django.contrib import admin
from django.contrib.admin import ShowFacets
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import SuspiciousOperation
from django.db import models
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.translation import gettext as _

from django_pgqueue.admin import generic
from django_pgqueue.admin.access import allowed, queues_for
from django_pgqueue.admin.contents import Contents
from django_pgqueue.admin.patience import patiently
from django_pgqueue.models import Message, Operation, Process, Queue, Rollup

__all__ = [
    "CAP",
    "CRUMBS_ARE_A_LIST",
    "CappedPaginator",
    "PageAdmin",
    "PageList",
    "ReadOnlyAdmin",
    "RecordAdmin",
]

#: How many rows a list counts, pages through and acts on at most.
CAP = 10_000

#: How the admin's own templates write the way back.
CRUMBS_ARE_A_LIST = django.VERSION >= (6, 1)
#: Whether the block of a page's buttons is within that of its content.
TOOLS_ARE_CONTENT = django.VERSION < (6, 1)


class CappedPaginator(generic.Paginator):
    """Counts no further than CAP: a count of everything would read everything."""

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        return int(rows.order_by()[:CAP].count())


class PageList(ChangeList):
    """A list that knows the rows of its page before the cells are asked one by one."""

    model_admin: PageAdmin

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.model_admin.prepare(list(self.result_list))


class PageAdmin(generic.ModelAdmin):
    """Shows a page at a time, and asks the database per page, not per cell."""

    paginator = CappedPaginator
    change_list_template = "admin/django_pgqueue/list.html"
    change_form_template = "admin/django_pgqueue/form.html"
    show_full_result_count = False
    show_facets = ShowFacets.NEVER
    list_per_page = 50

    class Media:
        css = {"all": ["django_pgqueue/admin.css"]}

    def prepare(self, rows: Sequence[Any]) -> None:
        """Put on the rows of a page, or the one of a form, what their cells show besides."""

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return PageList

    @patiently
    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if any("\x00" in text for values in request.GET.lists() for text in values[1]):
            raise SuspiciousOperation("an address with NUL, which no text in PostgreSQL holds")
        return super().changelist_view(request, self.with_nav(request, extra_context))

    @patiently
    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        return super().change_view(
            request, object_id, form_url, self.with_nav(request, extra_context)
        )

    def queues(self, request: HttpRequest) -> models.QuerySet[Queue]:
        """The queues that this request may see."""
        return queues_for(request)

    def with_nav(
        self, request: HttpRequest, context: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """The context with the ways to our pages, of those that this user may see."""
        pages = [
            (_("Queues"), Queue, "queue_changelist"),
            (_("Messages"), Message, "message_changelist"),
            (_("Failures"), Message, "message_failures"),
            (_("Operations"), Operation, "operation_changelist"),
            (_("Consumers"), Process, "process_changelist"),
            (_("Charts"), Rollup, "rollup_charts"),
            (_("Database"), Process, "health"),
        ]
        nav = []
        for name, model, page in pages:
            if not self.admin_site.is_registered(model):
                continue
            owner: Any = self.admin_site.get_model_admin(model)
            may = (
                owner.has_health_permission(request)
                if page == "health"
                else owner.has_view_permission(request)
            )
            if may:
                url = self.url(page)
                nav.append((name, url, url == request.path))
        return {"pgqueue_nav": nav, **(context or {})}

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Only what a filter of this list offers: anything else may read all there is."""
        offered = set()
        for each in self.get_list_filter(request):
            if isinstance(each, type) and issubclass(each, admin.SimpleListFilter):
                offered.add(each.parameter_name)
            else:
                offered |= {f"{each}__exact", f"{each}__id__exact"}
        return lookup in offered

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Any:
        found = self.look_up(request, object_id, from_field)
        if found is not None:
            self.prepare([found])
        return found

    def look_up(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """The object of a page, as Django finds it."""
        return super().get_object(request, object_id, from_field)

    def url(self, name: str, /, *args: object, **query: object) -> str:
        """The address of one of our pages on this site; ``query`` follows its question mark."""
        route = f"admin:django_pgqueue_{name}"
        return reverse(route, args=args, query=query, current_app=self.admin_site.name)

    def own_path(self, route: str, view: Callable[..., HttpResponse], name: str) -> URLPattern:
        """One of our pages on this site, for who may enter it; ``url(name)`` leads there."""
        return path(route, self.admin_site.admin_view(view), name=f"django_pgqueue_{name}")

    def render_page(
        self, request: HttpRequest, template: str, context: dict[str, Any]
    ) -> TemplateResponse:
        """A page of our own within the admin."""
        request.current_app = self.admin_site.name
        return TemplateResponse(
            request,
            template,
            {
                **self.admin_site.each_context(request),
                "crumbs_are_a_list": CRUMBS_ARE_A_LIST,
                "tools_are_content": TOOLS_ARE_CONTENT,
                "opts": self.opts,
                "media": self.media,
                **self.with_nav(request),
                **context,
            },
        )

    def render_live(
        self, request: HttpRequest, name: str, context: dict[str, Any]
    ) -> TemplateResponse:
        """A page that refreshes itself: all of it, or its live part for refresh.js."""
        # All of it would use up Django's messages.
        live = request.headers.get("X-Requested-With") == "pgqueue"
        template = f"admin/django_pgqueue/{name}{'_live' if live else ''}.html"
        return self.render_page(request, template, {"is_list": True, "refreshed": True, **context})

    def link(self, model: type[models.Model], pk: object, text: object, **query: object) -> str:
        """A link to the page of an object, or the plain text on a site that has no such page."""
        if pk is None or not self.admin_site.is_registered(model):
            return str(text)
        url = self.url(f"{model._meta.model_name}_change", pk, **query)
        return format_html('<a href="{}">{}</a>', url, text)

    def message_link(self, pk: int, queue_id: int) -> str:
        """A link to a message that names its queue: by its id alone all tables are asked for it."""
        return self.link(Message, pk, pk, queue=queue_id)

    def listed(self, model: type[models.Model], text: object, **query: str | int) -> str:
        """A link to a list, narrowed by its filters, or the plain text where there is no list."""
        if not self.admin_site.is_registered(model):
            return str(text)
        url = self.url(f"{model._meta.model_name}_changelist", **query)
        return format_html('<a href="{}">{}</a>', url, text)


class RecordAdmin(PageAdmin):
    """Rows that processes and jobs write: to look at."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class ReadOnlyAdmin(RecordAdmin):
    """Messages and their outcomes, of the queues that may be seen."""

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.may(request, "view")

    def may(self, request: HttpRequest, action: str) -> bool:
        """Whether the user has Django's permission of that name: what actions ask for."""
        return request.user.has_perm(f"{self.opts.app_label}.{action}_{self.opts.model_name}")

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Any:
        found = super().get_object(request, object_id, from_field)
        if found is not None:
            found.contents = Contents.of(found.pk, found.queue_id, using=found._state.db)
        return found

    def get_queryset(self, request: HttpRequest) -> models.QuerySet[Any]:
        # Not by a join: the planner might sort everything behind it.
        rows = super().get_queryset(request).prefetch_related("queue")
        seen = allowed(request)
        return rows if seen is None else rows.filter(queue_id__in=list(seen))
