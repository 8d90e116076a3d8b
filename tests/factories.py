"""Factories for test objects, with defaults for what a test does not care about."""

from __future__ import annotations

import factory
from factory.django import DjangoModelFactory

from django_pgqueue.testing.factories import MessageFactory, QueueFactory
from tests.app.models import Order

__all__ = ["MessageFactory", "OrderFactory", "QueueFactory"]


class OrderFactory(DjangoModelFactory[Order]):
    number = factory.Sequence(lambda n: f"order {n}")

    class Meta:
        model = Order
