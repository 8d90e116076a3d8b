"""The tables: a model in each module.

Messages, the archive, schedules and bulk actions are models, too: their objects have operations, so
they are in :mod:`django_pgqueue.queues`. :mod:`django_pgqueue.models` has all models.
"""

from __future__ import annotations

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured

if apps.apps_ready and not apps.is_installed("django_pgqueue"):
    raise ImproperlyConfigured(
        "'django_pgqueue' is not in INSTALLED_APPS: add it, and run manage.py migrate"
    )
