"""What a webhook says, in one line: a small function for each kind of event.

Everything here turns a payload into a value and touches no database. ``summarize`` picks the
function registered for an event; an event without one gets a general line, so nothing is dropped.
To tell more about an event, write a function for it and register it with ``@tells``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone

from django.db.models import TextChoices
from django.utils.dateparse import parse_datetime


class Kind(TextChoices):
    PUSH = "push", "push"
    ISSUE = "issue", "issue"
    PULL_REQUEST = "pull_request", "pull request"
    REVIEW = "review", "review"
    COMMENT = "comment", "comment"
    DISCUSSION = "discussion", "discussion"
    STAR = "star", "star"
    FORK = "fork", "fork"
    RELEASE = "release", "release"
    CHECK = "check", "check"
    DEPLOYMENT = "deployment", "deployment"
    SECURITY = "security", "security"
    PEOPLE = "people", "people"
    OTHER = "other", "other"


@dataclass(frozen=True)
class Summary:
    """One line of the feed, ready to be stored: *actor* did *title*."""

    kind: Kind
    actor: str
    title: str
    url: str = ""
    happened_at: datetime | None = None


@dataclass(frozen=True)
class Told:
    """What the function of one event knows; ``summarize`` adds the rest."""

    title: str
    url: str | None = None
    at: str | None = None


Teller = Callable[[dict], Told]

_tellers: dict[str, tuple[Kind, Teller]] = {}


def tells(event: str, kind: Kind) -> Callable[[Teller], Teller]:
    """Register the function that tells what *event* is about."""

    def register(teller: Teller) -> Teller:
        _tellers[event] = (kind, teller)
        return teller

    return register


def summarize(event: str, payload: dict) -> Summary:
    """Say in one line what *payload*, delivered as *event*, is about.

    >>> summarize("star", {"action": "created", "sender": {"login": "ada"}}).title
    'starred it'
    """
    kind, teller = _tellers.get(event, (Kind.OTHER, None))
    told = teller(payload) if teller else in_general(event, payload)
    return Summary(
        kind=kind,
        actor=_login(payload.get("sender"))[:100],
        title=_shorten(told.title, 300),
        url=_web_address(told.url),
        happened_at=_moment(told.at),
    )


def in_general(event: str, payload: dict) -> Told:
    """The line for every event that has no function of its own."""
    words = [event, payload.get("action")]
    return Told(": ".join(word.replace("_", " ") for word in words if word), _home(payload))


# Code


@tells("push", Kind.PUSH)
def push(payload: dict) -> Told:
    branch = _short_ref(payload["ref"])
    if payload["deleted"]:
        return Told(f"deleted {branch}", payload["compare"])

    head = payload.get("head_commit") or {}
    commits = _count(len(payload["commits"]), "commit")
    if payload["created"]:
        title = f"created {branch}"
    elif payload["forced"]:
        title = f"force-pushed {commits} to {branch}"
    else:
        title = f"pushed {commits} to {branch}"
    if head:
        title += f": {_first_line(head['message'])}"
    return Told(title, payload["compare"], head.get("timestamp"))


@tells("create", Kind.PUSH)
def create(payload: dict) -> Told:
    return Told(f"created {payload['ref_type']} {payload['ref']}", _home(payload))


@tells("delete", Kind.PUSH)
def delete(payload: dict) -> Told:
    return Told(f"deleted {payload['ref_type']} {payload['ref']}", _home(payload))


@tells("commit_comment", Kind.COMMENT)
def commit_comment(payload: dict) -> Told:
    comment = payload["comment"]
    title = f"commented on {comment['commit_id'][:7]}: {_first_line(comment['body'])}"
    return Told(title, comment["html_url"], comment["updated_at"])


@tells("gollum", Kind.OTHER)
def gollum(payload: dict) -> Told:
    page = payload["pages"][0]
    more = len(payload["pages"]) - 1
    title = f"{page['action']} wiki page {page['title']}"
    return Told(f"{title} and {more} more" if more else title, page["html_url"])


@tells("release", Kind.RELEASE)
def release(payload: dict) -> Told:
    release = payload["release"]
    title = f"{payload['action']} release {release['name'] or release['tag_name']}"
    return Told(title, release["html_url"], release["published_at"] or release["created_at"])


# Issues, pull requests, discussions


@tells("issues", Kind.ISSUE)
def issues(payload: dict) -> Told:
    issue = payload["issue"]
    return Told(f"{payload['action']} issue {_titled(issue)}", issue["html_url"], _latest(issue))


@tells("issue_comment", Kind.COMMENT)
def issue_comment(payload: dict) -> Told:
    comment, issue = payload["comment"], payload["issue"]
    verb = {"created": "commented on", "edited": "edited a comment on"}.get(
        payload["action"], f"{payload['action']} a comment on"
    )
    return Told(f"{verb} {_titled(issue)}", comment["html_url"], comment["updated_at"])


@tells("pull_request", Kind.PULL_REQUEST)
def pull_request(payload: dict) -> Told:
    pull = payload["pull_request"]
    merged = payload["action"] == "closed" and pull["merged"]
    verb = {
        "converted_to_draft": "made a draft of",
        "ready_for_review": "marked ready for review",
        "review_requested": "asked for a review of",
        "review_request_removed": "withdrew a review request for",
        "synchronize": "pushed to",
    }.get(payload["action"], payload["action"])
    title = f"{'merged' if merged else verb} pull request {_titled(pull)}"
    return Told(title, pull["html_url"], _latest(pull))


@tells("pull_request_review", Kind.REVIEW)
def pull_request_review(payload: dict) -> Told:
    review, pull = payload["review"], payload["pull_request"]
    verb = {
        "approved": "approved",
        "changes_requested": "asked for changes to",
        "commented": "reviewed",
        "dismissed": "dismissed a review of",
    }.get(review["state"].lower(), "reviewed")
    return Told(f"{verb} {_titled(pull)}", review["html_url"], review["submitted_at"])


@tells("pull_request_review_comment", Kind.REVIEW)
def pull_request_review_comment(payload: dict) -> Told:
    comment, pull = payload["comment"], payload["pull_request"]
    title = f"{payload['action']} a review comment on {_titled(pull)}"
    return Told(title, comment["html_url"], comment["updated_at"])


@tells("pull_request_review_thread", Kind.REVIEW)
def pull_request_review_thread(payload: dict) -> Told:
    pull = payload["pull_request"]
    title = f"{payload['action']} a review thread on {_titled(pull)}"
    return Told(title, pull["html_url"], _latest(pull))


@tells("discussion", Kind.DISCUSSION)
def discussion(payload: dict) -> Told:
    discussion = payload["discussion"]
    verb = payload["action"].replace("_", " ")
    return Told(
        f"{verb} discussion {_titled(discussion)}", discussion["html_url"], _latest(discussion)
    )


@tells("discussion_comment", Kind.DISCUSSION)
def discussion_comment(payload: dict) -> Told:
    comment, discussion = payload["comment"], payload["discussion"]
    title = f"{payload['action']} a comment in discussion {_titled(discussion)}"
    return Told(title, comment["html_url"], comment["updated_at"])


@tells("milestone", Kind.ISSUE)
def milestone(payload: dict) -> Told:
    milestone = payload["milestone"]
    title = f"{payload['action']} milestone {milestone['title']}"
    return Told(title, milestone["html_url"], _latest(milestone))


@tells("label", Kind.ISSUE)
def label(payload: dict) -> Told:
    return Told(f"{payload['action']} label {payload['label']['name']}", _home(payload))


# Attention


@tells("star", Kind.STAR)
def star(payload: dict) -> Told:
    starred = payload["action"] == "created"
    return Told(
        "starred it" if starred else "took the star back",
        _home(payload),
        payload.get("starred_at"),
    )


@tells("watch", Kind.STAR)
def watch(payload: dict) -> Told:
    return Told(f"{payload['action']} watching it", _home(payload))


@tells("fork", Kind.FORK)
def fork(payload: dict) -> Told:
    forkee = payload["forkee"]
    return Told(f"forked it to {forkee['full_name']}", forkee["html_url"], forkee["created_at"])


# Checks and deployments


@tells("workflow_run", Kind.CHECK)
def workflow_run(payload: dict) -> Told:
    run = payload["workflow_run"]
    name = f"{run['name'] or 'workflow'} #{run['run_number']}"
    return Told(f"{name} on {run['head_branch']}: {_result(run)}", run["html_url"], _latest(run))


@tells("workflow_job", Kind.CHECK)
def workflow_job(payload: dict) -> Told:
    job = payload["workflow_job"]
    at = job["completed_at"] or job["started_at"]
    return Told(f"workflow job {job['name']}: {_result(job)}", job["html_url"], at)


@tells("check_run", Kind.CHECK)
def check_run(payload: dict) -> Told:
    run = payload["check_run"]
    at = run["completed_at"] or run["started_at"]
    return Told(f"check {run['name']}: {_result(run)}", run["html_url"], at)


@tells("check_suite", Kind.CHECK)
def check_suite(payload: dict) -> Told:
    suite = payload["check_suite"]
    title = f"checks on {suite['head_branch']} ({suite['head_sha'][:7]}): {_result(suite)}"
    return Told(title, _home(payload), suite["updated_at"])


@tells("status", Kind.CHECK)
def status(payload: dict) -> Told:
    title = f"status {payload['context']} on {payload['sha'][:7]}: {payload['state']}"
    url = payload["target_url"] or payload["commit"]["html_url"]
    return Told(title, url, payload["updated_at"])


@tells("deployment", Kind.DEPLOYMENT)
def deployment(payload: dict) -> Told:
    deployment = payload["deployment"]
    title = f"deploys {_short_ref(deployment['ref'])} to {deployment['environment']}"
    return Told(title, _home(payload), deployment["created_at"])


@tells("deployment_status", Kind.DEPLOYMENT)
def deployment_status(payload: dict) -> Told:
    status, deployment = payload["deployment_status"], payload["deployment"]
    title = f"deployment of {_short_ref(deployment['ref'])} to {deployment['environment']}"
    return Told(f"{title}: {status['state']}", _home(payload), status["updated_at"])


# Security


@tells("dependabot_alert", Kind.SECURITY)
def dependabot_alert(payload: dict) -> Told:
    alert = payload["alert"]
    advisory = alert["security_advisory"]
    title = f"{payload['action']} alert: {advisory['severity']}, {advisory['summary']}"
    return Told(title, alert["html_url"], alert["updated_at"])


@tells("code_scanning_alert", Kind.SECURITY)
def code_scanning_alert(payload: dict) -> Told:
    alert = payload["alert"]
    verb = payload["action"].replace("_", " ")
    title = f"{verb}: code scanning alert #{alert['number']}: {alert['rule']['description']}"
    return Told(title, alert["html_url"], alert["created_at"])


@tells("security_advisory", Kind.SECURITY)
def security_advisory(payload: dict) -> Told:
    advisory = payload["security_advisory"]
    title = f"advisory {advisory['ghsa_id']} {payload['action']}: {advisory['summary']}"
    return Told(title, f"https://github.com/advisories/{advisory['ghsa_id']}", _latest(advisory))


# People and the webhook itself


@tells("member", Kind.PEOPLE)
def member(payload: dict) -> Told:
    verb = {"added": "added", "removed": "removed"}.get(payload["action"], "changed the role of")
    return Told(f"{verb} collaborator {_login(payload['member'])}", payload["member"]["html_url"])


@tells("membership", Kind.PEOPLE)
def membership(payload: dict) -> Told:
    preposition = "to" if payload["action"] == "added" else "from"
    title = f"{payload['action']} {_login(payload['member'])} {preposition}"
    return Told(f"{title} team {payload['team']['name']}", payload["team"].get("html_url"))


@tells("ping", Kind.OTHER)
def ping(payload: dict) -> Told:
    return Told(f"set up this webhook: {payload['zen']}")


# Words the functions above share


def _login(user: dict | None) -> str:
    return user["login"] if user else ""


def _home(payload: dict) -> str | None:
    return (payload.get("repository") or {}).get("html_url")


def _titled(numbered: dict) -> str:
    return f"#{numbered['number']}: {numbered['title']}"


def _latest(thing: dict) -> str | None:
    return thing.get("updated_at") or thing.get("created_at")


def _result(run: dict) -> str:
    return (run["conclusion"] or run["status"] or "unknown").replace("_", " ")


def _short_ref(ref: str) -> str:
    return ref.removeprefix("refs/heads/").removeprefix("refs/tags/")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]


def _shorten(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _web_address(url: str | None) -> str:
    # Some addresses are typed by users (a status' target_url): no "javascript:" in our feed.
    return url if url and url.startswith(("https://", "http://")) and len(url) <= 500 else ""


def _moment(at: str | None) -> datetime | None:
    moment = parse_datetime(at) if at else None
    if moment and moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return moment
