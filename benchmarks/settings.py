"""Django settings of every benchmark process; BENCHMARK_DATABASE has the connection."""

from __future__ import annotations

import importlib.util
import json
import os

database = json.loads(os.environ["BENCHMARK_DATABASE"])

SECRET_KEY = "only for benchmarks"
USE_TZ = True
TIME_ZONE = "UTC"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django_pgqueue",
    "benchmarks",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]
ROOT_URLCONF = "benchmarks.urls"
STATIC_URL = "static/"
ALLOWED_HOSTS = ["testserver"]

if importlib.util.find_spec("django.tasks"):
    TASKS = {
        "default": {
            "BACKEND": "django_pgqueue.tasks.PgQueueBackend",
            "QUEUES": ["tasks-drain", "tasks-latency", "tasks-wait"],
        }
    }
    if importlib.util.find_spec("django_tasks_db"):
        INSTALLED_APPS.append("django_tasks_db")
        TASKS["django-tasks-db"] = {"BACKEND": "django_tasks_db.DatabaseBackend", "QUEUES": []}
    if importlib.util.find_spec("django_ox"):
        INSTALLED_APPS.append("django_ox")
        TASKS["django-ox"] = {"BACKEND": "django_ox.backend.OxBackend", "QUEUES": []}
        # Its limits are settings (peers/limited/django_ox.py).
        INSTALLED_APPS.append("oxpull")
        TASKS["django-ox-limited"] = {
            "BACKEND": "oxpull.backend.OxpullBackend",
            "QUEUES": [],
            "OPTIONS": {
                "WORKER_CLASS": "oxpull.worker.OxpullWorker",
                "RATE_LIMITS": {
                    queue: {"limit": 20, "per": 1, "queues": [queue]}
                    for queue in ("limits-busy", "limits-newcomer")
                },
            },
        }

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": database["dbname"],
        "HOST": database["host"],
        "PORT": database["port"],
        "USER": database["user"],
        "PASSWORD": database.get("password", ""),
        "OPTIONS": database.get("options", {}),
        "CONN_MAX_AGE": None if "BENCHMARK_PERSISTENT" in os.environ else 0,
    },
}

# The same database in a second session.
DATABASES["other"] = dict(DATABASES["default"])

if "BENCHMARK_HISTORY" in os.environ:
    PGQUEUE = {"HISTORY_SECONDS": float(os.environ["BENCHMARK_HISTORY"] or 0) or None}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"stderr": {"class": "logging.StreamHandler"}},
    # These log several lines per task, whose time no contestant should pay.
    "loggers": {"django.tasks": {"level": "WARNING"}},
    "root": {"handlers": ["stderr"], "level": "WARNING"},
}
