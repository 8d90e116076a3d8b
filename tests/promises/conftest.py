"""Fixtures of the promises."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from django_pgqueue.management.jobs import url_of
from tests.promises.full_speed import FullSpeed
from tests.worker.conftest import consume

__all__ = ["consume"]


@pytest.fixture
def full_speed(committed: None, tmp_path: Path) -> Iterator[FullSpeed]:
    """Workers on the queue "orders", which the test makes."""
    found = FullSpeed(url_of("default"), tmp_path)
    yield found
    found.kill()
