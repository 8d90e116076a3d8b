"""Spans of sends and handler runs, created by signal receivers.

Names follow OpenTelemetry's semantic conventions for messaging. The first delivery of a message is
a child of the span that sent it. Each later delivery starts a new trace with a link to that span,
since a retry an hour later would stretch the first trace to an hour.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from django_pgqueue import __version__, signals

_SPAN = "_pgqueue_span"
_propagator = TraceContextTextMapPropagator()

#: The message of the current span (the first of a batch), and the token to detach its context.
_current: ContextVar[tuple[Any, Any] | None] = ContextVar("pgqueue_span", default=None)


def connect() -> None:
    """Connect the receivers for sends and handler runs."""
    signals.messages_sending.connect(_sending, dispatch_uid="pgqueue-tracing")
    signals.message_started.connect(_started, dispatch_uid="pgqueue-tracing")
    signals.message_finished.connect(_finished, dispatch_uid="pgqueue-tracing")


def _tracer() -> trace.Tracer:
    # Get the tracer each time: the project may set its provider after the apps are loaded.
    return trace.get_tracer("django_pgqueue", __version__)


def _sending(sender: str, headers: dict[str, Any], count: int, **kwargs: Any) -> None:
    """Create a span for the send, and add its trace context to the headers."""
    if "traceparent" in headers or not trace.get_current_span().get_span_context().is_valid:
        return  # the caller has set a trace header, or there is no current trace
    attributes: dict[str, Any] = _attributes(sender, "create")
    if count > 1:
        attributes["messaging.batch.message_count"] = count
    with _tracer().start_as_current_span(
        f"create {sender}", kind=SpanKind.PRODUCER, attributes=attributes
    ):
        _propagator.inject(headers)


def _started(sender: str, message: Any, **kwargs: Any) -> None:
    attributes = {
        **_attributes(sender, "process"),
        "messaging.message.id": str(message.id),
        "messaging.message.delivery_attempt": message.read_ct,
    }
    if message.task is not None:
        attributes["code.function.name"] = message.task
    origin = _origin(message)
    linked = message.read_ct > 1
    creator = trace.get_current_span(origin).get_span_context()
    span = _tracer().start_span(
        f"process {message.task or sender}",
        context=Context() if linked else origin,
        kind=SpanKind.CONSUMER,
        attributes=attributes,
        links=[Link(creator)] if linked and creator.is_valid else [],
    )
    vars(message)[_SPAN] = span
    if _current.get() is None:
        token = context.attach(trace.set_span_in_context(span))
        _current.set((message, token))


def _finished(sender: str, message: Any, error: BaseException | None, **kwargs: Any) -> None:
    span: Span | None = vars(message).pop(_SPAN, None)
    if span is None:
        return
    if error is not None:
        span.record_exception(error)
        span.set_attribute("error.type", f"{type(error).__module__}.{type(error).__qualname__}")
        span.set_status(Status(StatusCode.ERROR, str(error)[:200]))
    span.end()
    current = _current.get()
    # An abandoned run ends in another thread, which cannot detach the run's context.
    if current is not None and current[0] is message:
        context.detach(current[1])
        _current.set(None)


def _origin(message: Any) -> Context:
    headers = message.headers if isinstance(message.headers, dict) else {}
    carried = {name: text for name, text in headers.items() if isinstance(text, str)}
    return _propagator.extract(carried, Context())


def _attributes(queue: str, operation: str) -> dict[str, Any]:
    return {
        "messaging.system": "django_pgqueue",
        "messaging.destination.name": queue,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }
