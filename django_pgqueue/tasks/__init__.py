"""Django's Tasks on the queues: a backend, and tasks with a retry strategy of their own.

::

    TASKS = {"default": {"BACKEND": "django_pgqueue.tasks.PgQueueBackend"}}

``manage.py runconsumer`` runs them. Needs Django 6.0; the options of a task need 6.1.
"""

from __future__ import annotations

from django_pgqueue.tasks import _django
from django_pgqueue.tasks.backend import PgQueueBackend
from django_pgqueue.tasks.stand_ins import DummyBackend, ImmediateBackend
from django_pgqueue.tasks.task import PgQueueTask

__all__ = ["DummyBackend", "ImmediateBackend", "PgQueueBackend", "PgQueueTask"]

del _django
