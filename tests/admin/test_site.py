"""A custom admin site with only some of the pages."""

from __future__ import annotations

import re

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client
from django.urls import path

from django_pgqueue.admin import MessageAdmin, QueueAdmin, overview_page, patience
from django_pgqueue.models import Message, Queue
from tests.admin.conftest import answer

site = admin.AdminSite(name="operations")
site.register(Queue, QueueAdmin)
site.register(Message, MessageAdmin)

urlpatterns = [path("operations/", site.urls)]

pytestmark = pytest.mark.urls("tests.admin.test_site")


@pytest.fixture
def ann(db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("ann"))
    return client


def test_pages_link_to_what_is_registered_only(ann, orders):
    done, failed, left = orders.send_batch([1, 2, 3])
    orders.archive(done)
    for message in orders.read():
        message.reject("no")
    queue = Queue.objects.get().pk
    base = "/operations/django_pgqueue"

    for address in (
        f"{base}/queue/",
        f"{base}/queue/{queue}/change/",
        f"{base}/queue/{queue}/purge/",
        f"{base}/queue/{queue}/delete/",
        f"{base}/message/",
        f"{base}/message/{failed}/change/",
        f"{base}/message/{left}/change/",
    ):
        response = ann.get(address)
        text = response.content.decode()
        assert response.status_code == 200, address
        assert '="/admin/' not in text, address
        assert "/process/" not in text


def test_a_bulk_action_that_has_no_page_is_told_of(ann, orders):
    orders.send_batch(list(range(60)))
    url = "/operations/django_pgqueue/message/?state=ready"
    asked = ann.post(url, {"action": "cancel", "select_across": "1"}).content.decode()

    text = ann.post(url, answer(asked), follow=True).content.decode()

    assert "done, 60 of 60 messages" in text
    assert orders.metrics().length == 0


def test_a_slow_page_is_told_of_here_too(ann, orders, monkeypatch, sql):
    monkeypatch.setattr(patience, "SECONDS", 0.05)
    monkeypatch.setattr(overview_page, "look", lambda *args, **kwargs: sql("SELECT pg_sleep(60)"))

    assert ann.get("/operations/django_pgqueue/queue/").status_code == 503


def test_alerts_are_text_where_there_is_no_page(ann, orders):
    orders.send(1)

    text = ann.get("/operations/django_pgqueue/queue/").content.decode()

    assert "1 message to read" in text
    [cell] = re.findall(r'<tr class="bad">.*?<td class="act">(.*?)</td>', text)
    assert "<a " not in cell
