"""The schema ``pgmq``, installed in the test's transaction or committed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.management import call_command

from tests.conftest import run_sql

Call = Callable[..., list[tuple[Any, ...]]]


def call(text: str, *values: Any) -> list[tuple[Any, ...]]:
    """The rows of a call of a function, as ``call("send(%s, %s)", ...)``."""
    return run_sql(f"SELECT * FROM pgmq.{text}", list(values))


@pytest.fixture
def pgmq(db: None) -> Call:
    """Calls functions of the schema, which is rolled back with the test."""
    call_command("pgqueue_pgmq", "install", verbosity=0)
    return call


@pytest.fixture
def committed_pgmq(committed: None) -> Iterator[Call]:
    call_command("pgqueue_pgmq", "install", verbosity=0)
    yield call
    call_command("pgqueue_pgmq", "remove", verbosity=0)
