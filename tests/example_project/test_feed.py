"""Tests of the inbox's pages."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.staticfiles import finders
from django.test import Client

from django_pgqueue import queue
from example_project.inbox.demo.payloads import load
from example_project.inbox.models import Activity

pytestmark = [pytest.mark.django_db, pytest.mark.urls("example_project.urls")]


@pytest.fixture
def filled(post: Any, consume: Any) -> None:
    for event, body in load():
        post(event=event, body=body)
    consume()


def text_of(client: Client, url: str) -> str:
    response = client.get(url)
    assert response.status_code == 200
    return response.content.decode()


def test_an_empty_feed_says_what_to_do(client, github):
    page = text_of(client, "/")

    assert "Nothing has happened yet." in page
    assert "/webhooks/github/" in page


@pytest.mark.usefixtures("filled")
def test_the_feed_shows_the_queue_and_what_happened(client):
    page = text_of(client, "/")

    assert "pushed 2 commits to main: Throttle the second stage" in page
    assert "<dt>Archived</dt><dd>25</dd>" in page
    assert 'href="/repositories/acme/rocket/"' in page
    assert 'href="/admin/"' in page


@pytest.mark.usefixtures("filled")
def test_the_feed_refreshes_itself_under_a_strict_content_security_policy(client):
    page = text_of(client, "/")

    assert [part for part in ("queue", "activities") if f'id="{part}" data-live' in page] == [
        "queue",
        "activities",
    ]
    loaded = re.findall(r'<(?:script src|link [^>]*href)="([^"]+)"', page)
    assert len(loaded) == 3  # the icon, the style sheet and the script that refreshes
    for address in loaded:
        assert finders.find(address.removeprefix("/static/"))
    assert "<style" not in page
    assert not re.search(r"<script(?! src)| on[a-z]+=| style=", page)


def test_the_feed_counts_dead_letters(client, github):
    queue("github.dead").send({})

    assert "<dt>Dead letters</dt><dd>1</dd>" in text_of(client, "/")


@pytest.mark.usefixtures("filled")
def test_the_feed_filters_by_repository_and_kind(client):
    of_repository = text_of(client, "/?repository=tinyshop/storefront")
    of_kind = text_of(client, "/?kind=release")
    of_neither = text_of(client, "/?repository=nobody/nothing")

    assert "Cart forgets teapots" in of_repository
    assert "Countdown skips seven" not in of_repository
    assert "published release 1.8 Soft landing" in of_kind
    assert "Cart forgets teapots" not in of_kind
    assert "Nothing like that has happened yet." in of_neither


@pytest.mark.usefixtures("filled")
def test_a_long_feed_has_pages_that_keep_the_filter(client, post, consume):
    for event, body in load() * 3:
        post(event=event, body=body)
    consume()

    page = text_of(client, "/?repository=acme/rocket&page=2")

    assert "Page 2 of 2" in page
    assert "?repository=acme%2Frocket&amp;page=1" in page


@pytest.mark.usefixtures("filled")
def test_a_repository_has_a_page(client):
    page = text_of(client, "/repositories/acme/rocket/")

    assert "Reusable rocket, mostly reusable documentation" in page
    assert "1,205" in page
    assert client.get("/repositories/nobody/nothing/").status_code == 404


def test_what_strangers_wrote_is_escaped(client, post, consume):
    issue = {"number": 1, "title": "<script>alert(1)</script>", "html_url": ""}
    post({"action": "opened", "issue": issue}, event="issues")
    consume()

    page = text_of(client, "/")

    assert Activity.objects.get().title.endswith("<script>alert(1)</script>")
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("model", ["delivery", "repository", "activity"])
def test_the_admin_lists_and_shows_everything(admin_client, model):
    listing = text_of(admin_client, f"/admin/inbox/{model}/?q=acme")

    assert "acme/rocket" in listing
    assert admin_client.get(f"/admin/inbox/{model}/add/").status_code == 403
