"""The admin's site under django-unfold, a theme with templates of its own."""

from __future__ import annotations

from django.conf import settings
from django.contrib import admin
from django.test.utils import override_settings
from django.urls import path
from unfold.sites import UnfoldAdminSite

#: Our elements on the theme's pages.
OURS = ".pgqueue, .pgqueue-above"
#: Matches when the theme's scripts have drawn the page in the window's colour scheme.
DRAWN = {"light": "html:not(.dark, [x-cloak])", "dark": "html.dark:not([x-cloak])"}

site = UnfoldAdminSite()
for model, owner in admin.site._registry.items():
    site.register(model, type(owner))
urlpatterns = [path("admin/", site.urls)]


def installed() -> override_settings:
    """Settings of a project that uses the theme."""
    apps = ["unfold.apps.BasicAppConfig", *settings.INSTALLED_APPS]
    return override_settings(INSTALLED_APPS=apps, ROOT_URLCONF=__name__)
