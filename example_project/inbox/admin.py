"""The inbox in Django's admin, read only."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext as _

from django_pgqueue.admin import generic
from example_project.inbox.models import Activity, Delivery, Repository
from example_project.inbox.report import page_path


class ReadOnlyAdmin(generic.ModelAdmin):
    """Rows are created by deliveries; the admin only shows and deletes them."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class IsProcessed(admin.SimpleListFilter):
    title = "processed"
    parameter_name = "processed"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("yes", "Yes"), ("no", "Not yet")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() is None:
            return queryset
        return queryset.filter(processed_at__isnull=self.value() == "no")


@admin.register(Delivery)
class DeliveryAdmin(ReadOnlyAdmin):
    list_display = ["guid", "event", "action", "repository", "received_at", "is_processed"]
    list_filter = [IsProcessed, "event"]
    search_fields = ["guid", "repository", "message_id"]
    date_hierarchy = "received_at"

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.report)
        return [path("report/", view, name="inbox_report"), *super().get_urls()]

    def report(self, request: HttpRequest) -> HttpResponse:
        """The dashboard as last drawn by ``manage.py report``."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        drawn = page_path()
        context = {
            **self.admin_site.each_context(request),
            "title": _("Report"),
            "report": drawn.read_text(encoding="utf-8") if drawn.exists() else "",
        }
        return TemplateResponse(request, "admin/inbox/report.html", context)

    @admin.display(boolean=True, ordering="processed_at", description="processed")
    def is_processed(self, delivery: Delivery) -> bool:
        return delivery.is_processed


@admin.register(Repository)
class RepositoryAdmin(ReadOnlyAdmin):
    list_display = [
        "full_name",
        "activity_count",
        "stars",
        "forks",
        "open_issues",
        "last_activity_at",
    ]
    search_fields = ["full_name"]
    ordering = ["-activity_count", "full_name"]


@admin.register(Activity)
class ActivityAdmin(ReadOnlyAdmin):
    list_display = ["title", "kind", "actor", "repository"]
    list_filter = ["kind", "repository"]
    list_select_related = ["repository"]
    search_fields = ["title", "actor"]
    raw_id_fields = ["delivery", "repository"]
