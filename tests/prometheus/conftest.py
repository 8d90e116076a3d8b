"""A consumer in the test's process, and the listeners that count its work."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_pgqueue import signals
from django_pgqueue.observability.pages import pages
from django_pgqueue.prometheus import apps
from tests.worker.conftest import consume, held

__all__ = ["connected", "consume", "held"]


@pytest.fixture
def connected() -> Iterator[None]:
    """Connect the listeners, as in a project with the app installed."""
    apps.PrometheusConfig.create("django_pgqueue.prometheus").ready()
    yield
    pages.clear()
    for name in signals.__all__:
        for identity in list(getattr(signals, name).receivers):
            if "pgqueue-prometheus" in str(identity[0][0]):
                getattr(signals, name).disconnect(dispatch_uid=identity[0][0])
