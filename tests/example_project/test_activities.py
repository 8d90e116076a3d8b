"""The line for each event; needs no database."""

from __future__ import annotations

import pytest

from example_project.inbox.activities import Kind, Summary, summarize
from example_project.inbox.demo.payloads import load, repeat

SENDER = {"sender": {"login": "mira"}}


def test_a_push_has_branch_commits_and_message():
    payload = {
        **SENDER,
        "ref": "refs/heads/main",
        "compare": "https://example.com/compare",
        "commits": [{}, {}],
        "head_commit": {"message": "One\n\nTwo"},
    }

    assert summarize("push", payload) == Summary(
        kind=Kind.PUSH,
        actor="mira",
        title="pushed 2 commits to main: One",
        url="https://example.com/compare",
    )


@pytest.mark.parametrize(("merged", "verb"), [(True, "merged"), (False, "closed")])
def test_a_closed_pull_request_was_merged_or_not(merged, verb):
    pull = {"number": 3, "title": "Seven", "merged": merged, "html_url": "https://example.com"}

    summary = summarize("pull_request", {"action": "closed", "pull_request": pull})

    assert summary.title == f"{verb} pull request #3: Seven"


def test_an_event_without_a_function_gets_the_general_line():
    summary = summarize("quantum_merge", {"action": "half_done", **SENDER})

    assert summary == Summary(kind=Kind.OTHER, actor="mira", title="quantum merge: half done")


@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", "data:text/html,x", "https://" + "x" * 500, ""]
)
def test_only_web_addresses_become_links(url):
    issue = {"number": 1, "title": "x", "html_url": url}

    assert summarize("issues", {"action": "opened", "issue": issue}).url == ""


def test_a_long_title_is_cut():
    issue = {"number": 1, "title": "x" * 400, "html_url": ""}

    title = summarize("issues", {"action": "opened", "issue": issue}).title

    assert len(title) == 300
    assert title.endswith("x…")


def test_shipped_payloads_cover_known_and_general_events():
    events = [event for event, _ in load()]

    assert len(events) >= 20
    assert {"push", "issues", "pull_request", "star", "branch_protection_rule"} <= set(events)


def test_payloads_repeat_up_to_a_count():
    payloads = [("push", b"1"), ("star", b"2")]

    assert list(repeat(payloads, 3)) == [("push", b"1"), ("star", b"2"), ("push", b"1")]
