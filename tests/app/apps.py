"""The tests' app."""

from __future__ import annotations

from django.apps import AppConfig


class OrdersAppConfig(AppConfig):
    name = "tests.app"
    label = "orders_app"
    default_auto_field = "django.db.models.BigAutoField"
