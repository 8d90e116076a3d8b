"""A process that runs maintenance, for test_retention_of_groups."""

from __future__ import annotations

import time
from typing import Any

from tests.actors import enter

__all__ = ["maintain"]


def maintain(databases: dict[str, dict[str, Any]]) -> None:
    """Run maintenance rounds until killed."""
    enter(databases)
    from django_pgqueue import queue

    while True:
        queue("orders").maintain(patience=0.3)
        time.sleep(0.1)
