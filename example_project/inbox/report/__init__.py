"""The webhook history as a report: from the archive to a lake and to a page.

``history.py`` queries the lake with Spark, ``dashboard.py`` draws it and the roll-ups. ``manage.py
report`` does both; the admin shows the page that it has written, without Spark.
"""

from __future__ import annotations

from pathlib import Path

from django.conf import settings

__all__ = ["lake_path", "page_path"]


def lake_path() -> Path:
    """Where the lake is, if no other place is named."""
    return Path(settings.BASE_DIR) / ".lake"


def page_path() -> Path:
    """Where the job leaves the dashboard, and the admin finds it."""
    return lake_path() / "report.html"
