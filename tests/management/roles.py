"""A server role without rights, and code that runs with the role's rights."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import ProgrammingError, connection, connections

from tests.conftest import run_sql

#: The ``role`` fixture's role; each test process has its own.
ROLE = f"pgqueue_test_role_{os.getpid()}"


@pytest.fixture
def role(committed: None) -> Iterator[str]:
    run_sql(f"CREATE ROLE {ROLE}")
    yield ROLE
    run_sql(f"DROP OWNED BY {ROLE}")
    run_sql(f"DROP ROLE {ROLE}")


@contextmanager
def acting(role: str) -> Iterator[None]:
    """New connections of this process have only the role's rights."""
    options = connection.settings_dict["OPTIONS"]
    before = options.get("options")
    connections.close_all()
    options["options"] = f"{before or ''} -c role={role}"
    try:
        yield
    finally:
        connections.close_all()
        options["options"] = before
        if before is None:
            del options["options"]


def refused(act: Callable[[], Any]) -> bool:
    """Whether the server refuses the call for lack of rights."""
    with pytest.raises(ProgrammingError, match=r"permission denied|must be owner|row-level"):
        act()
    return True
