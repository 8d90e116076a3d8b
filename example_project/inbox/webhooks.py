"""Validates a webhook request: size, signature, headers, JSON.

``parse`` turns a request into a ``Webhook``, or raises ``Refused`` with the response. It uses no
database: a forged request costs one hash and no query.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import uuid
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest

EVENT_NAME = re.compile(r"[a-z0-9_]{1,50}")
ACTION = re.compile(r"[A-Za-z0-9_-]{1,100}")


class Refused(Exception):
    """The request is not a valid webhook; *status* and the message are the response."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Webhook:
    guid: uuid.UUID
    event: str
    payload: dict[str, Any]

    @property
    def action(self) -> str:
        return _text(self.payload.get("action"))

    @property
    def routing_key(self) -> str:
        """The topic to publish under: ``github.issues.opened``, or ``github.push``."""
        words = ["github", self.event]
        # GitHub's actions are single words. Any other value stays out of the topic.
        if ACTION.fullmatch(self.action):
            words.append(self.action)
        return ".".join(words)

    @property
    def repository(self) -> str:
        repository = self.payload.get("repository")
        return _text(repository.get("full_name")) if isinstance(repository, dict) else ""


def sign(body: bytes, secret: str) -> str:
    """The value GitHub sends as X-Hub-Signature-256.

    >>> sign(b"{}", "secret")[:16]
    'sha256=77325902c'
    """
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def parse(request: HttpRequest) -> Webhook:
    body = _body(request)
    _check_signature(request, body)
    return Webhook(
        guid=_guid(_header(request, "X-GitHub-Delivery")),
        event=_event(_header(request, "X-GitHub-Event")),
        payload=_payload(body),
    )


def _body(request: HttpRequest) -> bytes:
    try:
        return request.body
    except RequestDataTooBig:
        limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        raise Refused(413, f"The payload is larger than {limit} bytes.") from None


def _check_signature(request: HttpRequest, body: bytes) -> None:
    expected = sign(body, settings.GITHUB_WEBHOOK_SECRET)
    given = _header(request, "X-Hub-Signature-256")
    # In constant time: the duration must not reveal how much of a guess is right.
    if not hmac.compare_digest(expected.encode(), given.encode()):
        raise Refused(403, "X-Hub-Signature-256 does not match: check the webhook's secret.")


def _header(request: HttpRequest, name: str) -> str:
    value = request.headers.get(name)
    if not value:
        raise Refused(400, f"The header {name} is missing.")
    return value


def _guid(value: str) -> uuid.UUID:
    try:
        return uuid.UUID(value)
    except ValueError:
        raise Refused(400, "The header X-GitHub-Delivery must be a GUID.") from None


def _event(value: str) -> str:
    if not EVENT_NAME.fullmatch(value):
        raise Refused(400, "The header X-GitHub-Event must be the name of an event.")
    return value


def _payload(body: bytes) -> dict[str, Any]:
    try:
        payload = json.loads(body)
    except (ValueError, RecursionError):
        raise Refused(
            400, "The payload must be JSON: choose the content type application/json at GitHub."
        ) from None
    if not isinstance(payload, dict):
        raise Refused(400, "The payload must be a JSON object.")
    return payload


def _text(value: object) -> str:
    # PostgreSQL's text cannot hold NUL.
    return value.replace("\x00", "") if isinstance(value, str) else ""
