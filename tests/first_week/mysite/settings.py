from __future__ import annotations

import os

SECRET_KEY = "only for tests"
INSTALLED_APPS = ["django.contrib.contenttypes", "django_pgqueue", "shop"]
ROOT_URLCONF = "mysite.urls"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ.get("MYSITE", "mysite"),
    }
}
TASKS = {
    "default": {
        "BACKEND": "django_pgqueue.tasks.PgQueueBackend",
        "QUEUES": ["default"],
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
