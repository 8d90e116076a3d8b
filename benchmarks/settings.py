"""Django's settings in every process of a benchmark; BENCHMARK_DATABASE says where."""

from __future__ import annotations

import importlib.util
import json
import os

database = json.loads(os.environ["BENCHMARK_DATABASE"])

SECRET_KEY = "only for benchmarks"
USE_TZ = True
TIME_ZONE = "UTC"

INSTALLED_APPS = ["django.contrib.contenttypes", "django_pgqueue", "benchmarks"]

if importlib.util.find_spec("django_tasks_db") and importlib.util.find_spec("django.tasks"):
    INSTALLED_APPS.append("django_tasks_db")
    TASKS = {"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}}

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": database["dbname"],
        "HOST": database["host"],
        "PORT": database["port"],
        "USER": database["user"],
        "PASSWORD": database.get("password", ""),
    },
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"stderr": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["stderr"], "level": "WARNING"},
}
