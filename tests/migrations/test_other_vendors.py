"""A project whose other databases are not PostgreSQL."""

from __future__ import annotations

import subprocess
import sys

PROJECT = """
import django
from django.conf import settings
from django.core.management import call_command
from django.db import connection
from django.db.migrations.state import ProjectState

settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    INSTALLED_APPS=["django.contrib.contenttypes", "django_pgqueue"],
    SILENCED_SYSTEM_CHECKS=["django_pgqueue.E002"],
)
django.setup()
call_command("migrate", verbosity=0)

from django.apps import apps
from django_pgqueue.operations import CreateQueue

state = ProjectState.from_apps(apps)
with connection.schema_editor() as editor:
    CreateQueue("orders").database_forwards("shop", editor, state, state)
print(sorted(name for name in connection.introspection.table_names() if "queue" in name))
call_command("migrate", "django_pgqueue", "zero", verbosity=0)
"""


def test_migrations_leave_a_database_of_another_vendor_alone():
    done = subprocess.run(
        [sys.executable, "-c", PROJECT], capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
