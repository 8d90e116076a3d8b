"""Wiring: what happens once when Django starts."""

from __future__ import annotations

from django.apps import AppConfig


class PgQueueConfig(AppConfig):
    name = "django_pgqueue"
    verbose_name = "Message queues"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django_pgqueue import checks, signals  # noqa: F401  registers them
        from django_pgqueue.models import Attempt
        from django_pgqueue.observability import logs

        logs.connect()
        signals.queue_maintained.connect(
            Attempt.objects.on_maintained, weak=False, dispatch_uid="django_pgqueue.attempts"
        )
