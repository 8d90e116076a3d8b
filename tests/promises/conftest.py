"""Fixtures of the promises."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from django_pgqueue.management.jobs import url_of
from tests.pgmq.conftest import committed_pgmq
from tests.promises.full_speed import FullSpeed
from tests.tasks.conftest import committed_backend, configure
from tests.worker.conftest import consume, held

__all__ = ["committed_backend", "committed_pgmq", "configure", "consume", "held"]


@pytest.fixture
def full_speed(committed: None, tmp_path: Path) -> Iterator[FullSpeed]:
    """Workers on the queue "orders", which the test makes."""
    found = FullSpeed(url_of("default"), tmp_path)
    yield found
    found.close()
