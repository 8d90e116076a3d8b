"""The tests' settings with handlers, on whatever database DATABASE_URL names."""

from __future__ import annotations

import json
import os

from tests.settings import *  # noqa: F403

# Without the example: its consumer would run too.
INSTALLED_APPS = [
    *(app for app in INSTALLED_APPS if not app.startswith("example_project")),  # noqa: F405
    "tests.working",
]
DATABASES = {"default": DATABASES["default"]}  # noqa: F405
# Further settings of the database, as JSON.
DATABASES["default"].update(json.loads(os.environ.get("WORKING_DATABASE", "{}")))
PGQUEUE = json.loads(os.environ.get("WORKING_PGQUEUE", "{}"))
