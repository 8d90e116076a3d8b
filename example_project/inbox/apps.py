"""The app's name and label."""

from __future__ import annotations

from django.apps import AppConfig


class InboxConfig(AppConfig):
    name = "example_project.inbox"
    label = "inbox"
    verbose_name = "GitHub inbox"
    default_auto_field = "django.db.models.BigAutoField"
