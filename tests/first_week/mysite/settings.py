from __future__ import annotations

from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent
SECRET_KEY = "only for tests"
INSTALLED_APPS = ["django.contrib.contenttypes", "django_pgqueue", "shop"]
ROOT_URLCONF = "mysite.urls"
DATABASES = {"default": {"ENGINE": "django_pgqueue.embedded"}}
TASKS = {
    "default": {
        "BACKEND": "django_pgqueue.tasks.PgQueueBackend",
        "QUEUES": ["default"],
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
