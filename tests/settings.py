"""Settings of the test suite: two databases, on DATABASE_URL's server or on an embedded one."""

from __future__ import annotations

from pathlib import Path

import environ

BASE_DIR = Path(__file__).resolve().parent.parent

env = environ.Env()

SECRET_KEY = "only for tests"
GITHUB_WEBHOOK_SECRET = "only for tests, too"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.humanize",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_pgqueue",
    "tests.app",
    "example_project.inbox",
]

# The inbox's tables without its migrations: other tests would find the queue that these create.
MIGRATION_MODULES = {"inbox": None}

MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]

ROOT_URLCONF = "tests.urls"

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
    server = env.db("DATABASE_URL")
else:
    # POSTGRES_BIN_DIR names another PostgreSQL's programs (`run.py test --postgres`), and
    # POSTGRES_DATA another data directory: concurrent runs need one each, and so do tox's
    # environments.
    bin_dir = env.str("POSTGRES_BIN_DIR", default="")
    parts = [".pgdata", "other" if bin_dir else "", env.str("TOX_ENV_NAME", default="")]
    data = env.str("POSTGRES_DATA", default="-".join(filter(None, parts)))
    server = {
        "ENGINE": "django_pgqueue.embedded",
        "NAME": "queue",
        "EMBEDDED_DIRECTORY": BASE_DIR / data,
        "EMBEDDED_BIN_DIR": bin_dir,
        # The tests' data need not survive a power cut.
        "EMBEDDED_SETTINGS": {"fsync": "off", "full_page_writes": "off"},
    }

DATABASES = {
    "default": {**server, "TEST": {"NAME": "test_queue"}},
    "other": {**server, "NAME": f"{server['NAME']}_other", "TEST": {"NAME": "test_queue_other"}},
}

# Our immediate backend accepts the options of the tests' tasks; tests of the queues' backend
# replace it.
TASKS = {"default": {"BACKEND": "django_pgqueue.tasks.ImmediateBackend"}}

DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
STATIC_URL = "static/"
TIME_ZONE = "UTC"
USE_I18N = False
USE_TZ = True
