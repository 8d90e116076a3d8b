"""A queued webhook becomes a line of the feed, for every sample payload."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from example_project.inbox.consumers import record_activity
from example_project.inbox.demo.payloads import load
from example_project.inbox.models import Activity, Delivery, Repository
from tests.webhooks import REAL_PAYLOADS, needs_real_payloads

pytestmark = [pytest.mark.django_db, pytest.mark.urls("example_project.urls")]

ROCKET = {"full_name": "acme/rocket", "stargazers_count": 7, "forks_count": 2}


def star(**repository: Any) -> dict[str, Any]:
    return {
        "action": "created",
        "sender": {"login": "olga"},
        "repository": {**ROCKET, "html_url": "https://github.com/acme/rocket", **repository},
    }


def post_and_consume(payloads: list[tuple[str, bytes]], post: Any, consume: Any) -> None:
    for event, body in payloads:
        assert post(event=event, body=body).status_code == 202

    consumed = consume()

    assert consumed == len(payloads)
    assert Activity.objects.count() == len(payloads)
    assert not Delivery.objects.filter(processed_at=None).exists()
    assert not Activity.objects.filter(title="").exists()
    with_repository = [body for _, body in payloads if "repository" in json.loads(body)]
    assert Activity.objects.exclude(repository=None).count() == len(with_repository)
    assert sum(Repository.objects.values_list("activity_count", flat=True)) == len(with_repository)


def test_every_shipped_payload_becomes_an_activity(post, consume):
    post_and_consume(load(), post, consume)


@needs_real_payloads
def test_every_real_payload_becomes_an_activity(post, consume):
    post_and_consume(load(REAL_PAYLOADS), post, consume)


def test_an_activity_names_actor_action_and_repository(post, consume):
    post(star())

    consume()

    activity = Activity.objects.get()
    assert (activity.actor, activity.title, activity.kind) == ("olga", "starred it", "star")
    assert activity.repository == Repository.objects.get(full_name="acme/rocket")


def test_a_message_delivered_twice_counts_once(post, github):
    post(star())
    [message] = github.read(in_transaction=True)

    record_activity(message)
    record_activity(message)

    assert Activity.objects.count() == 1
    assert Repository.objects.get().activity_count == 1


def test_an_older_delivery_does_not_bring_back_older_numbers(post, github):
    post(star(stargazers_count=7))
    post(star(stargazers_count=8))
    older, newer = github.read(qty=2, in_transaction=True)
    Delivery.objects.filter(message_id=older.id).update(
        received_at=timezone.now() - timedelta(hours=1)
    )

    record_activity(newer)
    record_activity(older)

    repository = Repository.objects.get()
    assert repository.stars == 8
    assert repository.activity_count == 2
