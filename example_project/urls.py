"""The project's URLs: the inbox at the root, and Django's admin under /admin/."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("", include("example_project.inbox.urls")),
]
