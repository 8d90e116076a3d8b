"""Describes each webhook in one line: a function for each of six events, and a general line.

Payload in, value out, no database. To say more about an event, write a function for it and register
it with ``@describes``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.db.models import TextChoices

Payload = dict[str, Any]


class Kind(TextChoices):
    PUSH = "push", "push"
    ISSUE = "issue", "issue"
    COMMENT = "comment", "comment"
    PULL_REQUEST = "pull_request", "pull request"
    RELEASE = "release", "release"
    STAR = "star", "star"
    OTHER = "other", "other"


@dataclass(frozen=True)
class Summary:
    """One line of the feed: *actor* did *title*."""

    kind: Kind
    actor: str
    title: str
    url: str = ""


#: The title and the address of an event.
Line = tuple[str, str]

_functions: dict[str, tuple[Kind, Callable[[Payload], Line]]] = {}


def describes(event: str, kind: Kind) -> Callable[[Callable[[Payload], Line]], Any]:
    """Register the function that describes *event*."""

    def register(function: Callable[[Payload], Line]) -> Callable[[Payload], Line]:
        _functions[event] = (kind, function)
        return function

    return register


def summarize(event: str, payload: Payload) -> Summary:
    """Describe *payload*, delivered as *event*, in one line.

    >>> summarize("star", {"action": "created", "sender": {"login": "ada"}}).title
    'starred it'

    Raises LookupError or TypeError for a payload of an unknown shape.
    """
    kind, function = _functions.get(event, (Kind.OTHER, None))
    title, url = function(payload) if function else in_general(event, payload)
    # A user may have typed the address: no "javascript:" in the feed.
    is_safe = url.startswith(("https://", "http://")) and len(url) <= 500
    return Summary(
        kind=kind,
        actor=(payload.get("sender") or {}).get("login", "")[:100],
        title=title if len(title) <= 300 else f"{title[:299]}…",
        url=url if is_safe else "",
    )


def in_general(event: str, payload: Payload) -> Line:
    """The line for events without a function of their own."""
    words = [event, payload.get("action")]
    return ": ".join(word.replace("_", " ") for word in words if word), _home(payload)


@describes("push", Kind.PUSH)
def push(payload: Payload) -> Line:
    branch = payload["ref"].removeprefix("refs/heads/").removeprefix("refs/tags/")
    if payload.get("deleted"):
        return f"deleted {branch}", payload["compare"]
    number = len(payload["commits"])
    title = f"pushed {number} commit{'s' if number != 1 else ''} to {branch}"
    if head := payload.get("head_commit"):
        title += ": " + head["message"].strip().partition("\n")[0]
    return title, payload["compare"]


@describes("issues", Kind.ISSUE)
def issues(payload: Payload) -> Line:
    issue = payload["issue"]
    return f"{payload['action']} issue {_numbered(issue)}", issue["html_url"]


@describes("issue_comment", Kind.COMMENT)
def issue_comment(payload: Payload) -> Line:
    verb = "commented on" if payload["action"] == "created" else "changed a comment on"
    return f"{verb} {_numbered(payload['issue'])}", payload["comment"]["html_url"]


@describes("pull_request", Kind.PULL_REQUEST)
def pull_request(payload: Payload) -> Line:
    pull = payload["pull_request"]
    is_merged = payload["action"] == "closed" and pull["merged"]
    verb = "merged" if is_merged else payload["action"].replace("_", " ")
    return f"{verb} pull request {_numbered(pull)}", pull["html_url"]


@describes("release", Kind.RELEASE)
def release(payload: Payload) -> Line:
    release = payload["release"]
    name = release["name"] or release["tag_name"]
    return f"{payload['action']} release {name}", release["html_url"]


@describes("star", Kind.STAR)
def star(payload: Payload) -> Line:
    title = "starred it" if payload["action"] == "created" else "took the star back"
    return title, _home(payload)


def _home(payload: Payload) -> str:
    return (payload.get("repository") or {}).get("html_url") or ""


def _numbered(thing: Payload) -> str:
    return f"#{thing['number']}: {thing['title']}"
