"""Fixtures for the whole suite."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

DEBIAN_POSTGRES_15 = Path("/usr/lib/postgresql/15/bin")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, with the reason said, what needs a program that this machine does not have."""
    missing = {}
    if not DEBIAN_POSTGRES_15.exists():
        missing["pg15"] = "needs a PostgreSQL 15 installation (Debian's postgresql-15)"
    if shutil.which("java") is None:
        missing["spark"] = "needs a Java runtime"
    for item in items:
        for marker, reason in missing.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))
