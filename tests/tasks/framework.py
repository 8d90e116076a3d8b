"""Django's Tasks, or django-tasks on Django 5.2, for tests that run with both."""

from __future__ import annotations

from importlib.util import find_spec

import django
import pytest

NAME = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"
HAS_TASKS = find_spec(NAME) is not None
needs_tasks = pytest.mark.skipif(not HAS_TASKS, reason="Django 5.2 has tasks by django-tasks")

if django.VERSION >= (6, 0):
    from django.tasks import (
        TaskContext,
        TaskResultStatus,
        default_task_backend,
        task,
        task_backends,
    )
    from django.tasks.base import Task
    from django.tasks.exceptions import (
        InvalidTask,
        InvalidTaskBackend,
        TaskResultDoesNotExist,
        TaskResultMismatch,
    )
    from django.tasks.signals import task_enqueued, task_finished, task_started
elif HAS_TASKS:
    from django_tasks import (
        TaskContext,
        TaskResultStatus,
        default_task_backend,
        task,
        task_backends,
    )
    from django_tasks.base import Task
    from django_tasks.exceptions import InvalidTaskBackendError as InvalidTaskBackend
    from django_tasks.exceptions import InvalidTaskError as InvalidTask
    from django_tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch
    from django_tasks.signals import task_enqueued, task_finished, task_started

__all__ = [
    "HAS_TASKS",
    "NAME",
    "InvalidTask",
    "InvalidTaskBackend",
    "Task",
    "TaskContext",
    "TaskResultDoesNotExist",
    "TaskResultMismatch",
    "TaskResultStatus",
    "default_task_backend",
    "needs_tasks",
    "task",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
]
