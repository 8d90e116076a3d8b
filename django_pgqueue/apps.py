"""Wiring: what happens once when Django starts."""

from __future__ import annotations

import django
from django.apps import AppConfig, apps
from django.db.models.signals import post_migrate
from django.utils.translation import gettext_lazy


class PgQueueConfig(AppConfig):
    name = "django_pgqueue"
    verbose_name = gettext_lazy("Message queues")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django_pgqueue import checks, schedules, signals  # noqa: F401  registers them
        from django_pgqueue.models import attempt, fixtures
        from django_pgqueue.observability import logs

        if apps.is_installed("django.contrib.admin"):
            # Consumers log the end of operations there, also where nothing else loads the admin.
            from django_pgqueue import admin  # noqa: F401

        fixtures.connect()
        logs.connect()
        schedules.connect()
        if django.VERSION >= (6, 0):
            from django_pgqueue import handlers
            from django_pgqueue.tasks import running

            running.connect()
            handlers.discover_with(running.register)
            post_migrate.connect(running.create_queues, sender=self)
        signals.queue_maintained.connect(
            attempt.prune_maintained, dispatch_uid="django_pgqueue.attempts"
        )
