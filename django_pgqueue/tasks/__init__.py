"""A backend for Django's Tasks, and tasks with options such as ``retry``.

::

    TASKS = {"default": {"BACKEND": "django_pgqueue.tasks.PgQueueBackend"}}

``manage.py runconsumer`` runs the tasks. Needs Django 6.0, or django-tasks on Django 5.2.
:func:`task` is Django's decorator with the options of :class:`PgQueueTask`.
"""

from __future__ import annotations

from django_pgqueue.tasks import framework  # noqa: F401  first: it refuses a Django without Tasks
from django_pgqueue.tasks.backend import (
    DummyBackend,
    ImmediateBackend,
    PgQueueBackend,
    message_of,
)
from django_pgqueue.tasks.definition import PgQueueTask, task

__all__ = [
    "DummyBackend",
    "ImmediateBackend",
    "PgQueueBackend",
    "PgQueueTask",
    "message_of",
    "task",
]
