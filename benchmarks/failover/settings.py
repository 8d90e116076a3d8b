"""Django settings of the sender and the consumer: several hosts, one of them writable."""

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
        "PORT": os.environ["FAILOVER_PORTS"],
        "OPTIONS": {"target_session_attrs": "read-write", "connect_timeout": 2},
    },
}
