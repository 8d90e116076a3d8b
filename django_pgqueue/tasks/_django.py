"""Refuses a Django that has no Tasks framework; imported before anything that needs it."""

from __future__ import annotations

import django
from django.core.exceptions import ImproperlyConfigured

__all__ = ["refuse_old_django"]


def refuse_old_django(version: tuple[int, ...]) -> None:
    """Raise ImproperlyConfigured before Django 6.0."""
    if version < (6, 0):
        raise ImproperlyConfigured(
            f"django_pgqueue.tasks needs the Tasks framework of Django 6.0 or newer, and this is "
            f"Django {'.'.join(map(str, version[:3]))}. Upgrade Django, or use @consumer and "
            f"queue(...).send(...), which need no more than Django 5.2."
        )


refuse_old_django(django.VERSION[:3])
