"""The Django app. It connects the signal receivers and adds ``/metrics`` to the health port."""

from __future__ import annotations

from importlib.util import find_spec

from django.apps import AppConfig
from django.core.exceptions import ImproperlyConfigured


class PrometheusConfig(AppConfig):
    name = "django_pgqueue.prometheus"
    label = "django_pgqueue_prometheus"
    verbose_name = "Message queues: metrics"

    def ready(self) -> None:
        if find_spec("prometheus_client") is None:
            raise ImproperlyConfigured(
                "django_pgqueue.prometheus needs prometheus-client. Run pip install "
                "'django-postgres-mq[prometheus]', or remove the app from INSTALLED_APPS"
            )
        from django_pgqueue.prometheus import counters

        counters.connect()
