"""Django settings of every benchmark process; BENCHMARK_DATABASE has the connection."""

from __future__ import annotations

import importlib.util
import json
import os
import warnings

database = json.loads(os.environ["BENCHMARK_DATABASE"])

SECRET_KEY = "only for benchmarks"
USE_TZ = True
TIME_ZONE = "UTC"

INSTALLED_APPS = ["django.contrib.contenttypes", "django_pgqueue", "benchmarks"]

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

if importlib.util.find_spec("django_q"):
    INSTALLED_APPS.append("django_q")
    # django-q2's defaults cause this warning. No task here runs longer than `retry`.
    warnings.filterwarnings("ignore", "Retry and timeout are misconfigured")
    Q_CLUSTER = {"orm": "default", **json.loads(os.environ.get("BENCHMARK_CLUSTER", "{}"))}

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": database["dbname"],
        "HOST": database["host"],
        "PORT": database["port"],
        "USER": database["user"],
        "PASSWORD": database.get("password", ""),
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
    "loggers": {name: {"level": "WARNING"} for name in ("django.tasks", "django-q")},
    "root": {"handlers": ["stderr"], "level": "WARNING"},
}
