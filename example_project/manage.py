#!/usr/bin/env python
"""Django's command line for the example project: ``python example_project/manage.py demo``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Python put this file's folder on the path; the project's modules are one folder up.
sys.path[0] = str(Path(__file__).resolve().parent.parent)


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")

    try:
        from django.core.management import execute_from_command_line

        execute_from_command_line(sys.argv)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
