"""Views that save an order and send a message; one of them fails afterwards."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.urls import path

from django_pgqueue import queue
from tests.app.models import Order

__all__ = ["urlpatterns"]


def accept(request: HttpRequest) -> HttpResponse:
    order = Order.objects.create(number="7")
    queue("orders").send({"order": order.pk})
    return HttpResponse(status=201)


def fail(request: HttpRequest) -> HttpResponse:
    accept(request)
    raise RuntimeError("after the message was sent")


def read(request: HttpRequest) -> HttpResponse:
    queue("orders").read()
    return HttpResponse()


urlpatterns = [path("accept", accept), path("fail", fail), path("read", read)]
