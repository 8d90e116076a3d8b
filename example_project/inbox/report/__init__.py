"""Reports on the webhook history: exports the archive to a lake, and draws a page.

``history.py`` queries the lake with Spark, and ``dashboard.py`` draws the results and the roll-ups.
``manage.py report`` does both. The admin shows the written page, without Spark.
"""

from __future__ import annotations

from pathlib import Path

from django.conf import settings

__all__ = ["lake_path", "page_path"]


def lake_path() -> Path:
    """The default path of the lake."""
    return Path(settings.BASE_DIR) / ".lake"


def page_path() -> Path:
    """The path of the dashboard, which the job writes and the admin reads."""
    return lake_path() / "report.html"
