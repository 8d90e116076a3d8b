from __future__ import annotations

from django.apps import AppConfig


class CeleryBeatConfig(AppConfig):
    name = "tests.celery_beat"
    label = "django_celery_beat"
