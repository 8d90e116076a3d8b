"""The tests' settings with handlers, on the database of DATABASE_URL."""

from __future__ import annotations

import json
import os

from tests.settings import *  # noqa: F403

# Without the example project, whose consumer would run too.
INSTALLED_APPS = [
    *(app for app in INSTALLED_APPS if not app.startswith("example_project")),  # noqa: F405
    "tests.working",
]
DATABASES = {"default": DATABASES["default"]}  # noqa: F405
# More database settings, as JSON.
DATABASES["default"].update(json.loads(os.environ.get("WORKING_DATABASE", "{}")))
PGQUEUE = json.loads(os.environ.get("WORKING_PGQUEUE", "{}"))
USE_TZ = os.environ.get("WORKING_USE_TZ") != "no"
