"""A simulated GitHub that posts to the inbox, and a consumer that empties its queue."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.conf import settings
from django.test import Client

from django_pgqueue import queue
from django_pgqueue.models import Message
from example_project.inbox.consumers import record_activity
from example_project.inbox.webhooks import sign

Post = Callable[..., Any]


@pytest.fixture
def github(db: None) -> Any:
    """The queue that the project's migrations create and bind."""
    Message.objects.create_queue("github.dead")
    Message.objects.create_queue("github", dead_letter_queue="github.dead")
    Message.objects.bind("github.#", "github")
    return queue("github")


@pytest.fixture
def post(github: Any) -> Post:
    """Post a webhook like GitHub. Headers given as None are left out."""

    def post(
        payload: Any = {"action": "created"},  # noqa: B006  never changed
        *,
        event: str = "star",
        guid: str | None = None,
        body: bytes | None = None,
        headers: dict[str, str | None] | None = None,
    ) -> Any:
        body = json.dumps(payload).encode() if body is None else body
        sent = {
            "X-GitHub-Event": event,
            "X-GitHub-Delivery": guid or str(uuid.uuid4()),
            "X-Hub-Signature-256": sign(body, settings.GITHUB_WEBHOOK_SECRET),
            **(headers or {}),
        }
        return Client().post(
            "/webhooks/github/",
            data=body,
            content_type="application/json",
            headers={name: value for name, value in sent.items() if value is not None},
        )

    return post


@pytest.fixture
def consume(github: Any) -> Callable[[], int]:
    """Call the project's consumer function with every waiting message, like a worker."""

    def consume() -> int:
        messages = github.read(qty=1000, in_transaction=True)
        for message in messages:
            record_activity(message)
        return len(github.archive([message.receipt for message in messages]))

    return consume
