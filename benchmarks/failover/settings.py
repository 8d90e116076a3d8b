"""Django's settings of sender and consumer: one database, two hosts, the one that takes writes."""

from __future__ import annotations

import os

SECRET_KEY = "only for benchmarks"
USE_TZ = True
TIME_ZONE = "UTC"
INSTALLED_APPS = ["django.contrib.contenttypes", "django_pgqueue", "benchmarks.failover"]

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "postgres",
        "USER": "postgres",
        "HOST": os.environ["FAILOVER_HOSTS"],
        "PORT": ",".join("5432" for _ in os.environ["FAILOVER_HOSTS"].split(",")),
        "OPTIONS": {"target_session_attrs": "read-write", "connect_timeout": 2},
    },
}
