"""Settings of the example project, each settable in the environment or in a .env file.

The defaults make a development server with a PostgreSQL server of its own, which starts at the
first query and keeps its data in ``.postgres/`` at the root of the repository.
"""

from __future__ import annotations

from pathlib import Path

import environ

BASE_DIR = Path(__file__).resolve().parent.parent

env = environ.Env()
env.read_env(BASE_DIR / ".env")

DEBUG = env.bool("DEBUG", default=True)

# For development only: a deployment must set its own secrets.
development_secret = "for-development-only" if DEBUG else env.NOTSET
SECRET_KEY = env.str("SECRET_KEY", default=development_secret)
GITHUB_WEBHOOK_SECRET = env.str("GITHUB_WEBHOOK_SECRET", default=development_secret)

# Set by `manage.py demo` only: planted payloads then make the consumers fail.
DEMO_FAULTS = env.bool("DEMO_FAULTS", default=False)

ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["127.0.0.1", "localhost"])

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.humanize",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_pgqueue",
    "example_project.inbox",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "example_project.urls"
WSGI_APPLICATION = "example_project.wsgi.application"
ASGI_APPLICATION = "example_project.asgi.application"

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

if "DATABASE_URL" in env:
    DATABASES = {"default": env.db("DATABASE_URL")}
else:
    DATABASES = {
        "default": {
            "ENGINE": "django_pgqueue.embedded",
            "NAME": "inbox",
            "EMBEDDED_DIRECTORY": env.path("EMBEDDED_DIRECTORY", default=BASE_DIR / ".postgres"),
        },
    }
DATABASES["default"].setdefault("CONN_MAX_AGE", 60)
DATABASES["default"].setdefault("CONN_HEALTH_CHECKS", True)

DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# GitHub limits a webhook's payload to 25 MB. A larger request is refused unread.
DATA_UPLOAD_MAX_MEMORY_SIZE = 25 * 1024 * 1024

LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_I18N = False
USE_TZ = True

STATIC_URL = "static/"
STATIC_ROOT = BASE_DIR / ".static"

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {
            "format": "{asctime} {levelname:<7} {name}: {message}",
            "datefmt": "%H:%M:%S",
            "style": "{",
        },
    },
    "handlers": {
        "console": {"class": "logging.StreamHandler", "formatter": "line"},
    },
    "loggers": {
        "django_pgqueue": {
            "handlers": ["console"],
            "level": env.str("QUEUE_LOG_LEVEL", default="INFO"),
            "propagate": False,
        },
        "example_project": {"handlers": ["console"], "level": "INFO", "propagate": False},
    },
}
