"""The app configuration, which connects the signal receivers."""

from __future__ import annotations

from importlib.util import find_spec

from django.apps import AppConfig
from django.core.exceptions import ImproperlyConfigured


class TracingConfig(AppConfig):
    name = "django_pgqueue.tracing"
    label = "django_pgqueue_tracing"
    verbose_name = "Message queues: traces"

    def ready(self) -> None:
        if find_spec("opentelemetry") is None:
            raise ImproperlyConfigured(
                "django_pgqueue.tracing needs opentelemetry-api. Run pip install "
                "'django-postgres-mq[opentelemetry]', or remove the app from INSTALLED_APPS"
            )
        from django_pgqueue.tracing import spans

        spans.connect()
