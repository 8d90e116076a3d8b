"""The webhook: its checks and answers; each delivery is queued exactly once."""

from __future__ import annotations

import threading
import uuid
from typing import Any

import pytest
from django.db import connection, transaction

from django_pgqueue import queue
from django_pgqueue.models import Message
from example_project.inbox.models import Delivery
from example_project.inbox.webhooks import sign

pytestmark = [pytest.mark.django_db, pytest.mark.urls("example_project.urls")]


def error_of(response: Any) -> tuple[int, str]:
    assert Delivery.objects.count() == 0
    assert queue("github").metrics().length == 0
    return response.status_code, response.json()["error"]


def test_a_signed_webhook_is_stored_and_queued(post, github):
    guid = str(uuid.uuid4())
    payload = {"action": "created", "repository": {"full_name": "acme/rocket"}}

    response = post(payload, event="star", guid=guid)

    delivery = Delivery.objects.get()
    assert response.status_code == 202
    assert response.json() == {
        "delivery": guid,
        "message": delivery.message_id,
        "duplicate": False,
    }
    assert (str(delivery.guid), delivery.event, delivery.action, delivery.repository) == (
        guid,
        "star",
        "created",
        "acme/rocket",
    )
    [message] = github.peek()
    assert message.id == delivery.message_id
    assert message.body == payload
    assert message.headers == {
        "event": "star",
        "delivery": guid,
        "x-routing-key": "github.star.created",
    }


def test_a_repeated_delivery_is_answered_and_not_queued_again(post, github):
    guid = str(uuid.uuid4())
    first = post(guid=guid)

    second = post(guid=guid)

    assert second.status_code == 200
    assert second.json() == {**first.json(), "duplicate": True}
    assert Delivery.objects.count() == 1
    assert github.metrics().length == 1


@pytest.mark.parametrize("wrong", ["sha256=" + "0" * 64, "sha1=abc", "nonsense", "sha256=é"])
def test_a_wrong_signature_is_refused(post, wrong):
    status, error = error_of(post(headers={"X-Hub-Signature-256": wrong}))

    assert status == 403
    assert "X-Hub-Signature-256" in error


def test_a_signature_of_another_body_is_refused(post):
    response = post(
        {"action": "deleted"},
        headers={"X-Hub-Signature-256": sign(b'{"action": "created"}', "a secret")},
    )

    assert error_of(response)[0] == 403


@pytest.mark.parametrize("header", ["X-Hub-Signature-256", "X-GitHub-Delivery", "X-GitHub-Event"])
def test_a_missing_header_is_named(post, header):
    assert error_of(post(headers={header: None})) == (400, f"The header {header} is missing.")


@pytest.mark.parametrize(
    ("header", "value"),
    [("X-GitHub-Delivery", "12"), ("X-GitHub-Event", "no event!"), ("X-GitHub-Event", "e" * 51)],
)
def test_a_malformed_header_is_named(post, header, value):
    status, error = error_of(post(headers={header: value}))

    assert status == 400
    assert header in error


@pytest.mark.parametrize(
    "body", [b"", b"payload=%7B%7D", b"{", b"\xff", b"[1]", b"null", b"[" * 100_000]
)
def test_what_is_not_a_json_object_is_refused(post, body):
    status, error = error_of(post(body=body))

    assert status == 400
    assert "JSON" in error


@pytest.mark.parametrize("body", [b'{"title": "\\u0000"}', b'{"stars": NaN}'])
def test_json_that_postgresql_cannot_hold_is_refused(post, body):
    assert error_of(post(body=body))[0] == 422


def test_a_body_over_the_limit_is_refused(post, settings):
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 100

    assert error_of(post({"text": "x" * 100}))[0] == 413


def test_only_post_is_answered(client):
    response = client.get("/webhooks/github/")

    assert response.status_code == 405
    assert response.headers["Allow"] == "POST"


def test_a_payload_of_odd_shapes_is_queued_all_the_same(post):
    response = post({"action": 7, "repository": "acme/rocket"})

    delivery = Delivery.objects.get()
    assert response.status_code == 202
    assert (delivery.action, delivery.repository) == ("", "")


@pytest.mark.parametrize(
    ("event", "payload", "key"),
    [
        ("issues", {"action": "opened"}, "github.issues.opened"),
        ("push", {}, "github.push"),
        ("check_run", {"action": "rerequested"}, "github.check_run.rerequested"),
        ("issues", {"action": "two words.*"}, "github.issues"),
        ("issues", {"action": 7}, "github.issues"),
    ],
)
def test_a_delivery_is_published_under_its_event_and_action(post, github, event, payload, key):
    assert post(payload, event=event).status_code == 202

    [message] = github.peek()
    assert message.headers["x-routing-key"] == key


def test_another_bound_queue_gets_a_copy_of_matching_webhooks(post, github):
    Message.objects.create_queue("announcements")
    Message.objects.bind("github.release.*", "announcements")

    post({"action": "published"}, event="release")
    post({"action": "created"}, event="star")

    assert github.metrics().length == 2
    [copy] = queue("announcements").peek(qty=9)
    assert copy.headers["event"] == "release"
    assert Delivery.objects.filter(message_id=copy.id).count() == 0


def test_a_rollback_leaves_neither_delivery_nor_message(post, github):
    class Undone(Exception):
        pass

    def take_back() -> None:
        with transaction.atomic():
            assert post().status_code == 202
            raise Undone

    with pytest.raises(Undone):
        take_back()

    assert Delivery.objects.count() == 0
    assert github.metrics().length == 0


def test_a_send_that_fails_leaves_no_delivery(post):
    Message.objects.drop_queue("github")

    with pytest.raises(LookupError):
        post()

    assert Delivery.objects.count() == 0


@pytest.mark.django_db(transaction=True)
def test_of_identical_requests_at_once_one_is_queued(post, github):
    guid = str(uuid.uuid4())
    together = threading.Barrier(4)
    statuses: list[int] = []

    def request() -> None:
        try:
            together.wait()
            statuses.append(post(guid=guid).status_code)
        finally:
            connection.close()

    threads = [threading.Thread(target=request) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(statuses) == [200, 200, 200, 202]
    assert Delivery.objects.count() == 1
    assert github.metrics().length == 1
    Message.objects.drop_queue("github")
