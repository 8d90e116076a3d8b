"""The app's configuration: connects signal receivers when Django starts."""

from __future__ import annotations

from django.apps import AppConfig, apps
from django.core.exceptions import ImproperlyConfigured
from django.db.backends.signals import connection_created
from django.db.models.signals import post_migrate
from django.utils.translation import gettext_lazy


class PgQueueConfig(AppConfig):
    name = "django_pgqueue"
    verbose_name = gettext_lazy("Message queues")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django_pgqueue import checks, operations  # noqa: F401  registers the checks
        from django_pgqueue.models import Queue
        from django_pgqueue.observability import logs
        from django_pgqueue.queues import fixtures

        if apps.is_installed("django.contrib.admin"):
            # Load the admin in consumers too: it logs the end of bulk actions.
            from django_pgqueue import admin  # noqa: F401

        connection_created.connect(Queue.objects.forget_unlogged)
        fixtures.connect()
        logs.connect()
        post_migrate.connect(operations.restore_queues, sender=self)
        try:
            from django_pgqueue.tasks import consuming
        except ImproperlyConfigured:
            pass  # Django 5.2 without django-tasks
        else:
            from django_pgqueue import handlers

            consuming.connect()
            handlers.discover_with(consuming.register)
            post_migrate.connect(consuming.create_queues, sender=self)
