"""What a consumer runs now, the stacks of its handlers on request, and its release."""

from __future__ import annotations

import asyncio
import threading

import pytest

from django_pgqueue.models import Mark, Message, Process
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)


def only() -> Process:
    return Process.objects.get()


def test_a_consumer_names_its_runs_and_answers_with_their_stacks(committed_orders, consume):
    go = threading.Event()

    def wait_for_the_bank(secret: str) -> None:
        go.wait(60)  # the bank

    def charge(message: Message) -> None:
        wait_for_the_bank(message.body)

    pk = committed_orders.send("hunter2")
    consume(charge, options={"heartbeat": 0.1})
    try:
        until(lambda: Process.objects.exclude(runs=[]).exists())
        [run] = only().runs
        assert (run["queue"], run["message"], run["number"]) == ("orders", pk, 1)
        assert run["what"].endswith("charge")
        assert only().stacks is None

        Process.objects.update(stacks_wanted=True)
        until(lambda: only().stacks_at is not None)

        process = only()
        assert not process.stacks_wanted
        [answer] = process.stacks
        lines = answer["stack"].splitlines()
        assert lines[0].endswith("in charge")  # nothing of the consumer's own frames
        assert "    go.wait(60)  # the bank" in lines
        assert "hunter2" not in answer["stack"]
    finally:
        go.set()
    until(lambda: only().runs == [])


def test_the_stack_of_an_async_handler_has_what_it_awaits(committed_orders, consume):
    go = threading.Event()

    async def ask_the_bank() -> None:
        while not go.is_set():
            await asyncio.sleep(0.05)

    async def charge(message: Message) -> None:
        await ask_the_bank()

    committed_orders.send(1)
    consume(charge, options={"heartbeat": 0.1})
    try:
        until(lambda: Process.objects.exclude(runs=[]).exists())
        Process.objects.update(stacks_wanted=True)
        until(lambda: only().stacks_at is not None)
        [answer] = only().stacks
    finally:
        go.set()

    places = [line for line in answer["stack"].splitlines() if line.startswith("  File")]
    assert places[0].endswith("in charge")
    assert places[1].endswith("in ask_the_bank")


def marked(monkeypatch: pytest.MonkeyPatch, *releases: str) -> list[Process]:
    found = []
    for release in releases:
        monkeypatch.setenv("PGQUEUE_RELEASE", release)
        found.append(Process.objects.register(["orders"], version="1", using="default"))
    return found


def test_the_first_consumer_of_a_release_marks_it(db, monkeypatch):
    v41, *_ = marked(monkeypatch, "v41", "v41", "", "v42", "v41", "v42")

    assert v41.release == "v41"
    assert list(Mark.objects.order_by("pk").values_list("text", "is_release")) == [
        ("v41", True),
        ("v42", True),
    ]
    # Back to a release that no process has any more.
    Process.objects.filter(release="v41").delete()
    marked(monkeypatch, "v41", "v41")
    Process.objects.all().delete()
    marked(monkeypatch, "v41")
    assert [mark.text for mark in Mark.objects.order_by("pk")] == ["v41", "v42", "v41"]
