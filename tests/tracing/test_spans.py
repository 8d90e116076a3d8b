"""One trace spans the request, the queue and the handler."""

from __future__ import annotations

import io
import signal
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path
from opentelemetry import trace
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from django_pgqueue import consumer, queue
from django_pgqueue.models import Message
from django_pgqueue.retries import Constant
from django_pgqueue.tracing import apps
from tests.tasks.framework import needs_tasks

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def named(exported: InMemorySpanExporter, name: str) -> list[Any]:
    return [span for span in exported.get_finished_spans() if span.name == name]


def test_a_trace_goes_from_the_request_to_the_handler(committed_orders, drain, provider, exported):
    tracer = provider.get_tracer("request")

    def charge(message: Message) -> None:
        with tracer.start_as_current_span("query"):
            pass

    with tracer.start_as_current_span("GET /order"):
        pk = committed_orders.send({"order": 7}, headers={"kept": 1})
    drain(charge)

    [request] = named(exported, "GET /order")
    [create] = named(exported, "create orders")
    [process] = named(exported, "process orders")
    [query] = named(exported, "query")
    assert create.parent.span_id == request.context.span_id
    assert process.parent.span_id == create.context.span_id
    assert query.parent.span_id == process.context.span_id
    assert len({s.context.trace_id for s in (request, create, process, query)}) == 1
    assert (create.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert process.attributes == {
        "messaging.system": "django_pgqueue",
        "messaging.destination.name": "orders",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.message.id": str(pk),
        "messaging.message.delivery_attempt": 1,
    }
    message = Message.objects.get(pk=pk)
    assert message.headers["kept"] == 1
    assert f"{create.context.span_id:016x}" in message.headers["traceparent"]


def test_retries_are_linked_and_not_nested(committed_orders, drain, provider, exported):
    def charge(message: Message) -> None:
        if message.attempts < 2:
            raise ValueError("no")

    with provider.get_tracer("request").start_as_current_span("GET /order"):
        committed_orders.send(7)
    drain(charge, retry=Constant(seconds=0))

    [create] = named(exported, "create orders")
    first, second, third = named(exported, "process orders")
    assert first.parent.span_id == create.context.span_id
    assert not first.links
    for retry in (second, third):
        assert retry.parent is None
        assert [link.context.span_id for link in retry.links] == [create.context.span_id]
    assert len({s.context.trace_id for s in (first, second, third)}) == 3
    assert [s.status.status_code for s in (first, second, third)] == [
        StatusCode.ERROR,
        StatusCode.ERROR,
        StatusCode.UNSET,
    ]
    assert first.attributes["error.type"] == "builtins.ValueError"
    assert [event.name for event in first.events] == ["exception"]


def test_an_async_handler_is_in_the_trace(committed_orders, drain, provider, exported):
    tracer = provider.get_tracer("request")

    async def charge(message: Message) -> None:
        with tracer.start_as_current_span(f"query {message.body}"):
            pass

    with tracer.start_as_current_span("GET /order"):
        committed_orders.send_batch([1, 2, 3])
    drain(charge)

    processed = {s.context.span_id: s for s in named(exported, "process orders")}
    queries = [s for n in (1, 2, 3) for s in named(exported, f"query {n}")]
    assert len({s.parent.span_id for s in queries}) == len(processed) == 3
    assert all(s.parent.span_id in processed for s in queries)


def test_the_messages_of_a_batch_have_a_span_each(committed_orders, drain, provider, exported):
    tracer = provider.get_tracer("request")
    after: list[bool] = []

    def charge(messages: list[Message]) -> None:
        after.append(trace.get_current_span().get_span_context().is_valid)

    for number in (1, 2):
        with tracer.start_as_current_span(f"GET /order/{number}"):
            committed_orders.send(number)
    drain(charge, batch=True, max_workers=1)

    traces = {s.context.trace_id for n in (1, 2) for s in named(exported, f"GET /order/{n}")}
    assert {s.context.trace_id for s in named(exported, "process orders")} == traces
    assert len(traces) == 2
    assert all(after)


def test_a_bulk_send_is_one_span(orders, provider, exported):
    with provider.get_tracer("request").start_as_current_span("GET /order"):
        orders.send_batch([1, 2])
        orders.send_batch([3, 4], headers=[{"a": 1}, None])

    one, two = named(exported, "create orders")
    assert one.attributes["messaging.batch.message_count"] == 2
    headers = [m.headers for m in Message.objects.order_by("pk")]
    ids = [header["traceparent"].split("-")[2] for header in headers]
    assert ids == [f"{span.context.span_id:016x}" for span in (one, one, two, two)]
    assert headers[2]["a"] == 1


def test_without_a_trace_nothing_is_added(orders, exported):
    orders.send(1)
    orders.send_batch([2, 3], headers=[None, {"a": 1}])

    assert [m.headers for m in Message.objects.order_by("pk")] == [None, None, {"a": 1}]
    assert exported.get_finished_spans() == ()


def test_a_trace_that_the_caller_chose_stays(orders, provider, exported):
    with provider.get_tracer("request").start_as_current_span("GET /order"):
        orders.send(1, headers={"traceparent": PARENT})

    assert Message.objects.get().headers == {"traceparent": PARENT}


@pytest.mark.parametrize("headers", [None, {"traceparent": "nonsense"}, {"traceparent": 7}])
def test_a_message_of_no_trace_begins_one(committed_orders, drain, exported, headers):
    committed_orders.send(1, headers=headers)

    drain(lambda message: None)

    [process] = named(exported, "process orders")
    assert process.parent is None


@needs_tasks
def test_a_task_is_in_the_trace_too(db, settings, provider, exported):
    from tests.tasks.sample import noop

    settings.TASKS = {"default": {"BACKEND": "django_pgqueue.tasks.PgQueueBackend"}}
    queue("default").create()

    with provider.get_tracer("request").start_as_current_span("GET /"):
        noop.enqueue()

    assert "traceparent" in Message.objects.get().headers


def place_order(request: HttpRequest) -> HttpResponse:
    from tests.tasks.sample import send_on

    send_on.enqueue("orders", {"number": 7})
    return HttpResponse("placed")


urlpatterns = [path("orders", place_order)]


@needs_tasks
def test_one_trace_goes_from_a_web_request_by_a_task_to_a_handler(
    committed, settings, own_handlers, provider, exported
):
    from django_pgqueue.tasks import consuming

    settings.TASKS = {"default": {"BACKEND": "django_pgqueue.tasks.PgQueueBackend"}}
    settings.ROOT_URLCONF = __name__
    queue("default").create()
    queue("orders").create()
    consuming.register()
    handled: list[Any] = []

    @consumer("orders")
    def charge(message: Message) -> None:
        handled.append(message.body)

    with provider.get_tracer("web").start_as_current_span("POST /orders", kind=SpanKind.SERVER):
        answer = Client().post("/orders")
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for name in ("default", "orders"):
        call_command("runconsumer", name, drain=True, no_progress=True, stdout=io.StringIO())
    for number, handler in kept.items():
        signal.signal(number, handler)

    assert (answer.status_code, handled) == (200, [{"number": 7}])
    task = "process tests.tasks.sample.send_on"
    names = ["POST /orders", "create default", task, "create orders", "process orders"]
    spans = [span for name in names for span in named(exported, name)]
    assert [span.name for span in spans] == names
    assert len({span.context.trace_id for span in spans}) == 1
    assert [span.parent.span_id for span in spans[1:]] == [
        span.context.span_id for span in spans[:-1]
    ]
    attributes = spans[2].attributes or {}
    assert attributes["code.function.name"] == "tests.tasks.sample.send_on"
    assert attributes["messaging.destination.name"] == "default"
    assert "code.function.name" not in (spans[4].attributes or {})


def test_the_app_says_what_it_needs(monkeypatch):
    monkeypatch.setattr(apps, "find_spec", lambda name: None)

    with pytest.raises(ImproperlyConfigured, match="needs opentelemetry-api"):
        apps.TracingConfig.create("django_pgqueue.tracing").ready()
