"""The admin under django-unfold, a theme with templates of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.conf import settings
from django.contrib import admin
from django.test import Client
from django.test.utils import override_settings
from django.urls import path, reverse

from django_pgqueue.models import BoundQueue, Queue
from tests.admin.conftest import page

unfold_sites = pytest.importorskip("unfold.sites")

NAV = 'class="pgqueue-nav"'

site = unfold_sites.UnfoldAdminSite()
for model, owner in admin.site._registry.items():
    site.register(model, type(owner))
urlpatterns = [path("admin/", site.urls)]


@pytest.fixture(autouse=True)
def unfold() -> Iterator[None]:
    apps = ["unfold.apps.BasicAppConfig", *settings.INSTALLED_APPS]
    with override_settings(INSTALLED_APPS=apps, ROOT_URLCONF=__name__):
        yield


def test_our_pages_lead_to_one_another_and_say_which_one_they_are(
    operator: Client, orders: BoundQueue
) -> None:
    pk = Queue.objects.get(name="orders").pk

    of_queue = page(operator, "queue", "overview", pk)
    assert NAV in of_queue
    assert "<h2>orders</h2>" in of_queue
    assert f'href="{reverse("admin:django_pgqueue_queue_purge", args=[pk])}"' in of_queue
    assert NAV in page(operator, "queue", "change", pk)
    assert NAV in page(operator, "message", "failures")
    assert NAV in page(operator, "operation")


def test_a_queue_is_dropped_by_its_name(operator: Client, orders: BoundQueue) -> None:
    queue = Queue.objects.get(name="orders")

    asked = page(operator, "queue", "delete", queue.pk)
    assert 'name="typed"' in asked
    operator.post(
        reverse("admin:django_pgqueue_queue_delete", args=[queue.pk]),
        {"post": "yes", "typed": "orders"},
    )

    assert not Queue.objects.filter(name="orders").exists()
