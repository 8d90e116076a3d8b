"""A consumer in the test's process, and the exported spans."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from django_pgqueue import signals
from django_pgqueue.tracing import apps, spans
from tests.worker.conftest import consume, drain

__all__ = ["consume", "drain"]


@pytest.fixture
def provider() -> TracerProvider:
    """A tracer provider for the test: the global one can be set only once."""
    return TracerProvider()


@pytest.fixture
def exported(
    provider: TracerProvider, monkeypatch: pytest.MonkeyPatch
) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(spans, "_tracer", lambda: provider.get_tracer("test"))
    apps.TracingConfig.create("django_pgqueue.tracing").ready()
    yield exporter
    for signal in (signals.messages_sending, signals.message_started, signals.message_finished):
        disconnected: Any = signal.disconnect(dispatch_uid="pgqueue-tracing")
        assert disconnected
