"""Base classes of our model admins. Their lists stay fast with any number of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

import django
from django.contrib import admin
from django.contrib.admin import ShowFacets
from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.db.models import Model
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseNotAllowed,
    HttpResponseRedirect,
)
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, URLPattern, path, reverse
from django.utils.functional import cached_property
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue.admin import generic
from django_pgqueue.admin.access import queues_for
from django_pgqueue.admin.page import Page
from django_pgqueue.admin.patience import patiently
from django_pgqueue.admin.shown import is_shown
from django_pgqueue.audit import acting_as
from django_pgqueue.models import (
    AuditEntry,
    Batch,
    Binding,
    BulkAction,
    ExportRun,
    Lake,
    Message,
    Process,
    Queue,
    Schedule,
)
from django_pgqueue.templatetags.pgqueue_admin import linked, number

#: Maximum number of rows that a list counts and pages through.
CAP = 10_000


class CappedPaginator(generic.Paginator):
    """Counts at most CAP rows, since an exact count would read the whole table."""

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        return int(rows.order_by()[:CAP].count())


def column(name: Any, value: Callable[[Any], Any], ordering: str | None = None) -> Any:
    """Make a list column. ``value`` computes a cell; ``ordering`` is the field to sort by."""
    return staticmethod(admin.display(description=name, ordering=ordering)(value))


def count_column(model: type[Model], field: str) -> Any:
    """Make a list column of a count, in the user's digits."""

    def shown(row: Any) -> str:
        return number(getattr(row, field))

    shown.__name__ = field  # Django derives the cell's CSS class from it.
    named: Any = model._meta.get_field(field)
    return admin.display(description=gettext_lazy(named.verbose_name), ordering=field)(shown)


def _by_user(view: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a view: its operations are recorded with the name of the request's user."""

    @wraps(view)
    def act(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        if not request.user.is_authenticated:
            return view(request, *args, **kwargs)
        with acting_as(request.user.get_username(), place="admin"):
            return view(request, *args, **kwargs)

    return act


class PageAdmin(generic.ModelAdmin):
    """The base of our model admins. Adds pages, navigation and time limits to ModelAdmin."""

    paginator = CappedPaginator
    change_list_template = "admin/django_pgqueue/list.html"
    change_form_template = "admin/django_pgqueue/form.html"
    show_full_result_count = False
    show_facets = ShowFacets.NEVER
    list_per_page = 50
    #: ``list_page`` and ``change_page`` replace Django's list and form. ``pages`` adds pages.
    list_page: type[Page] | None = None
    change_page: type[Page] | None = None
    pages: Sequence[type[Page]] = ()
    #: The part of the admin that it belongs to, if that is hidden until it is used.
    part = ""
    #: The command that fills the list, named while the list is empty.
    filled_by = ""

    class Media:
        css = {"all": ["django_pgqueue/admin.css"]}

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Return whether the site's lists of models name this one. Does not close its pages."""
        return super().has_module_permission(request) and is_shown(request, self.part)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if self.list_page is not None:
            return self.show(request, self.list_page, extra_context)
        if any("\x00" in text for values in request.GET.lists() for text in values[1]):
            raise SuspiciousOperation("the URL has a NUL character, which PostgreSQL cannot store")
        return self._list(request, extra_context)

    @patiently
    def _list(self, request: HttpRequest, extra_context: dict[str, Any] | None) -> HttpResponse:
        titled = {"heading": capfirst(self.opts.verbose_name_plural), **(extra_context or {})}
        titled.setdefault("title", titled["heading"])
        titled["filled_by"] = self.filled_by
        return super().changelist_view(request, self.with_nav(request, titled))

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        changes: Any = super().get_changelist_instance(request)
        changes.show_admin_actions = bool(changes.result_list)  # An empty list has no action bar.
        return changes

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        if self.change_page is not None:
            return self.show(request, self.change_page, extra_context, object_id=object_id)
        return super().change_view(request, object_id, form_url, extra_context)

    def get_urls(self) -> list[URLPattern]:
        urls = [*map(self._pattern, self.pages), *super().get_urls()]
        for url in urls:
            url.callback = _by_user(url.callback)
        return urls

    def _pattern(self, page: type[Page]) -> URLPattern:
        view: Any = partial(self.show, page=page)
        if not page.is_public:
            view = self.admin_site.admin_view(view)
        pattern: URLPattern = path(page.route, view, name=f"django_pgqueue_{page.name}")
        return pattern

    @patiently
    def show(
        self,
        request: HttpRequest,
        page: type[Page],
        extra: dict[str, Any] | None = None,
        **given: Any,
    ) -> HttpResponse:
        """Return a page's response. Raise PermissionDenied if the user may not see the page."""
        if page.is_post and request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not page.permits(self, request):
            raise PermissionDenied
        response: HttpResponse = page(self, request, extra).answer(**given)
        return response

    @patiently
    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        context = self.with_nav(request, extra_context)
        return super().changeform_view(request, object_id, form_url, context)

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        obj = context.get("original")
        heading = _("Add %s") % self.opts.verbose_name if obj is None else self.heading(obj)
        told = {"heading": heading, "tools": self.tools(request, obj) if obj else [], **context}
        return super().render_change_form(request, told, *args, **kwargs)

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.related_model is Queue:
            kwargs["queryset"] = queues_for(request)
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    def heading(self, obj: Any) -> str:
        """Return the heading of an object's form."""
        return capfirst(f"{self.opts.verbose_name} {obj}")

    def tools(self, request: HttpRequest, obj: Any) -> list[tuple[str, str]]:
        """Return labels and URLs of the links beside the heading of an object's form."""
        number = obj.pk if isinstance(obj, Queue) else getattr(obj, "queue_id", None)
        url = self.audit_url(request, number)
        return [(_("Audit log"), url)] if url else []

    def audit_url(self, request: HttpRequest, queue_id: int | None) -> str:
        """Return the URL of a queue's audit log, or "" if the user may not see it."""
        if not request.user.has_perm("django_pgqueue.view_auditentry"):
            return ""
        query = {} if queue_id is None else {"queue": queue_id}
        return self.url("auditentry_changelist", **query)

    # Triggers and operations write the audit log, whose entries Django's own log would repeat.

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> None:  # type: ignore[override]
        """Write no entry in Django's log."""

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> None:  # type: ignore[override]
        """Write no entry in Django's log."""

    def log_deletions(self, request: HttpRequest, queryset: Any) -> None:  # type: ignore[override]
        """Write no entry in Django's log."""

    @patiently
    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: Any = None
    ) -> HttpResponse:
        """Redirect to the audit log, of the object's queue if it has one."""
        obj = self.get_object(request, object_id)
        tools = [] if obj is None else PageAdmin.tools(self, request, obj)
        if not tools:
            raise Http404
        return HttpResponseRedirect(tools[-1][1])

    def with_nav(
        self, request: HttpRequest, context: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the context, with navigation links to the pages that the user may see."""
        pages = [
            (_("Queues"), Queue, "queue_changelist"),
            (_("Messages"), Message, "message_changelist"),
            (_("Failures"), Message, "message_failures"),
            (_("Batches"), Batch, "batch_changelist"),
            (_("Schedules"), Schedule, "schedule_changelist"),
            (_("Topics"), Binding, "binding_changelist"),
            (_("Bulk actions"), BulkAction, "bulkaction_changelist"),
            (_("Consumers"), Process, "process_changelist"),
            (_("Database"), Process, "health"),
            (_("Lakes"), Lake, "lake_changelist"),
            (_("Export runs"), ExportRun, "exportrun_changelist"),
            (_("Audit log"), AuditEntry, "auditentry_changelist"),
        ]
        nav = []
        for name, model, page in pages:
            if url := self.url(page):
                owner: Any = self.admin_site.get_model_admin(model)
                shown = next((each for each in owner.pages if each.name == page), Page)
                if shown.permits(owner, request) and (
                    request.path.startswith(url) or is_shown(request, owner.part)
                ):
                    nav.append((name, url))
        here = [url for _name, url in nav if request.path.startswith(url)]
        return {
            "pgqueue_nav": [
                (name, url, url == max(here, default="", key=len)) for name, url in nav
            ],
            **(context or {}),
        }

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Return whether the list offers this filter. Other lookups could read the whole table."""
        offered = set()
        for each in self.get_list_filter(request):
            if isinstance(each, type) and issubclass(each, admin.SimpleListFilter):
                offered.add(each.parameter_name)
            else:
                offered |= {f"{each}__exact", f"{each}__id__exact"}
        return lookup in offered

    def url(self, name: str, /, *args: object, **query: object) -> str:
        """Return the URL of one of our pages, or "" if this site does not have it."""
        route = f"admin:django_pgqueue_{name}"
        try:
            return reverse(route, args=args, query=query, current_app=self.admin_site.name)
        except NoReverseMatch:
            return ""

    def render_page(
        self, request: HttpRequest, template: str, context: dict[str, Any]
    ) -> TemplateResponse:
        """Return a response with one of our templates, in the admin's layout."""
        request.current_app = self.admin_site.name
        return TemplateResponse(
            request,
            template,
            {
                **self.admin_site.each_context(request),
                "crumbs_are_a_list": django.VERSION >= (6, 1),
                "opts": self.opts,
                "media": self.media,
                **self.with_nav(request),
                **context,
            },
        )

    def message_link(self, pk: int, queue_id: int) -> str:
        """Return a link to a message. The queue in its URL spares a search of all partitions."""
        return linked(self.url("message_change", pk), pk, queue=queue_id)

    def queue_link(self, pk: object, name: object) -> str:
        """Return a link to a queue's page."""
        return linked(self.url("queue_overview", pk), name)


class RecordAdmin(PageAdmin):
    """A read-only admin. Its rows are written by processes and jobs."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False
