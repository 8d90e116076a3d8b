"""``pgqueue_send``, ``pgqueue_peek``, ``pgqueue_redrive`` and ``pgqueue_replay``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError
from django.db import OperationalError

from django_pgqueue.models import BoundQueue, Message
from tests.management.calling import call, call_json, type_in
from tests.worker.test_processes import url

ROOT = Path(__file__).resolve().parents[2]


def bodies(queue: BoundQueue) -> list[Any]:
    return [message.body for message in queue.peek(qty=None)]


# Send


def test_a_body_is_sent_with_its_options(orders):
    sent = call_json(
        "pgqueue_send",
        "orders",
        '{"order": 7}',
        *("--headers", '{"by": "hand"}', "--priority", "5", "--group", "c1"),
    )

    [message] = orders.read()
    assert sent == {"queue": "orders", "id": message.id}
    assert (message.body, message.headers) == ({"order": 7}, {"by": "hand"})
    assert (message.priority, message.group) == (5, "c1")


def test_a_delayed_body_is_hidden(orders):
    call("pgqueue_send", "orders", "null", "--delay", "2h")

    assert orders.metrics().delayed == 1


def test_a_body_that_is_no_json_is_refused_with_a_hint(orders):
    with pytest.raises(CommandError, match="Quote text for JSON and for the shell"):
        call("pgqueue_send", "orders", "hello")

    assert bodies(orders) == []


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--headers", "{", "is not JSON"),
        ("--headers", "[1]", "headers must be a dict"),
        ("--priority", "101", "priority must be a whole number from -100 to 100"),
        ("--group", "", "group must be text of 1 to 255 characters"),
        ("--delay", "soon", "'soon' is not a duration"),
        ("--expires", "0", "expires must be more than zero seconds"),
        ("--batch", "0", "'0' must be a whole number, 1 or more"),
    ],
)
def test_options_that_make_no_sense_send_nothing(orders, option, value, words):
    with pytest.raises(CommandError, match=words):
        call("pgqueue_send", "orders", "1", option, value)

    assert bodies(orders) == []


def test_each_line_of_stdin_is_a_message(orders, monkeypatch):
    type_in(monkeypatch, '\ufeff{"order": 1}\r\n\n"é"\n  3  \nnull')

    said = call("pgqueue_send", "orders", "--batch", "2", "--headers", '{"by": "file"}')

    assert said.out == "Sent 4 messages to queue 'orders'.\n"
    assert bodies(orders) == [{"order": 1}, "é", 3, None]
    assert {message.headers["by"] for message in orders.peek(qty=None)} == {"file"}


def test_an_empty_stdin_sends_nothing(orders, monkeypatch):
    type_in(monkeypatch, "")

    assert call_json("pgqueue_send", "orders") == {"queue": "orders", "sent": 0, "bad": []}


BAD_LINES = {
    "{": "not JSON: ",
    "NaN": "not JSON: NaN has no JSON form",
    '"\\u0000"': "body holds the character NUL",
    '"\\ud800"': "body holds a lone surrogate",
    "1e999": "body is not JSON: Out of range",
    "[" * 1_000_000: "not JSON: it nests too deeply",
    b'"\xff"': "not JSON: 'utf-8' codec can't decode",
}


@pytest.mark.parametrize(("line", "reason"), BAD_LINES.items(), ids=range(len(BAD_LINES)))
def test_of_a_batch_with_a_bad_line_nothing_is_sent(orders, monkeypatch, line, reason):
    bad = line if isinstance(line, bytes) else line.encode()
    type_in(monkeypatch, b"1\n2\n3\n" + bad + b"\n5\n")

    with pytest.raises(CommandError) as caught:
        call("pgqueue_send", "orders", "--batch", "2")

    assert bodies(orders) == [1, 2]
    assert "line 3 (tail -n +3), or use --skip-bad" in str(caught.value)
    assert caught.value.said.err.startswith(f"line 4: {reason}")


def test_bad_lines_can_be_skipped(orders, monkeypatch):
    type_in(monkeypatch, "1\n{\n3\n[\n")

    said = call("pgqueue_send", "orders", "--skip-bad")

    assert bodies(orders) == [1, 3]
    assert said.out == "Sent 2 messages to queue 'orders'.\nSkipped bad lines: 2.\n"
    assert [line.split(":")[0] for line in said.err.splitlines()] == ["line 2", "line 4"]


def test_of_very_many_bad_lines_the_rest_is_counted(orders, monkeypatch):
    type_in(monkeypatch, "{\n" * 25)

    said = call("pgqueue_send", "orders", "--skip-bad")

    assert said.err.splitlines()[-1] == "... and 5 more bad lines"


@pytest.fixture
def press(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Press Ctrl-C ``number`` times when a batch was sent and its result is not yet back."""
    send_batch = Message.objects.send_batch

    def times(number: int) -> None:
        def send(*arguments: Any, **options: Any) -> list[int]:
            ids = send_batch(*arguments, **options)
            for _ in range(number):
                signal.raise_signal(signal.SIGINT)
            return ids

        monkeypatch.setattr(Message.objects, "send_batch", send)

    return times


def test_ctrl_c_lets_a_batch_finish_and_names_the_line_to_continue_from(orders, monkeypatch, press):
    type_in(monkeypatch, "1\n2\n3\n4\n")
    press(1)

    with pytest.raises(CommandError, match="Sent 2 messages") as caught:
        call("pgqueue_send", "orders", "--batch", "2")

    assert str(caught.value).endswith("Continue from line 3 (tail -n +3).")
    assert caught.value.returncode == 130
    assert bodies(orders) == [1, 2]


def test_a_second_ctrl_c_ends_the_send_at_once_and_names_the_uncertain_lines(
    orders, monkeypatch, press
):
    type_in(monkeypatch, "1\n2\n3\n4\n")
    press(2)
    before = signal.getsignal(signal.SIGINT)  # a shell's background job ignores SIGINT

    with pytest.raises(CommandError, match="Lines 1 to 2 may have been sent or not") as caught:
        call("pgqueue_send", "orders", "--batch", "2")

    assert caught.value.returncode == 130
    assert signal.getsignal(signal.SIGINT) is before


def test_a_lost_connection_leaves_its_batch_unsure(orders, monkeypatch):
    type_in(monkeypatch, "1\n2\n")

    def lose(*arguments: Any, **options: Any) -> list[int]:
        raise OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(Message.objects, "send_batch", lose)

    with pytest.raises(CommandError, match="Lines 1 to 2 may have been sent or not"):
        call("pgqueue_send", "orders")


def test_a_terminal_shows_how_far_it_is(orders, monkeypatch, tmp_path):
    lines = tmp_path / "lines.jsonl"
    lines.write_text("1\n2\n3\n4\n")
    with lines.open() as stream:
        monkeypatch.setattr("sys.stdin", stream)

        said = call("pgqueue_send", "orders", "--batch", "1", terminal=True)

    assert "]  25%  1 sent, " in said.err
    assert said.out == "Sent 4 messages to queue 'orders'.\n"


def test_a_shell_pipes_lines_and_gets_exit_codes(committed_orders):
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "DATABASE_URL": url(),
    }

    def shell(*arguments: str, given: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "django", *arguments],
            cwd=ROOT,
            env=environment,
            input=given,
            capture_output=True,
            text=True,
            timeout=60,
        )

    good = shell("pgqueue_send", "orders", "--json", given='{"order": 7}\n')
    bad = shell("pgqueue_send", "orders", "--json", given='1\n{"order"\n')
    unanswered = shell("pgqueue_purge", "orders", given="")
    wrong = shell("pgqueue_send", given="")

    assert good.stderr == ""
    assert good.returncode == 0
    assert json.loads(good.stdout)["sent"] == 1
    assert (bad.returncode, json.loads(bad.stdout)["bad"][0]["line"]) == (1, 2)
    assert "CommandError: Lines 1 to 2 were not sent. Bad lines among them: 1." in bad.stderr
    assert (unanswered.returncode, unanswered.stdout) == (1, "")
    assert "Add --no-input" in unanswered.stderr
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert bodies(committed_orders) == [{"order": 7}]


# Peek


def test_peek_shows_what_a_read_would_find_and_takes_nothing(orders):
    pk = orders.send({"order": "é"}, headers={"by": "hand"}, group="c1", priority=3)
    orders.send(2)

    headings, *lines = call("pgqueue_peek", "orders").out.splitlines()

    assert headings.split() == [
        *("id", "age", "read", "priority", "expires", "group", "headers", "body")
    ]
    first, second = sorted(lines)
    assert first.split()[:1] + first.split()[3:] == [
        *(str(pk), "0", "3", "c1", '{"by":', '"hand"}', '{"order":', '"é"}')
    ]
    assert second.endswith(" 2")
    assert [message.read_ct for message in orders.read(qty=2)] == [1, 1]


def test_peek_shows_what_waits_and_why(orders):
    orders.send(1)

    nothing = call("pgqueue_peek", "orders", "--blocked").out
    later = orders.send(2, delay=60)
    headings, line = call("pgqueue_peek", "orders", "--blocked").out.splitlines()

    assert nothing == "Queue 'orders' has no blocked messages.\n"
    assert headings.startswith("waits for")
    assert line.split()[:2] == ["scheduled", str(later)]


def test_peek_gives_whole_messages_as_json(orders):
    pk = orders.send({"order": 1}, group="c1")

    [message] = call_json("pgqueue_peek", "orders")

    assert (message["id"], message["body"], message["group"]) == (pk, {"order": 1}, "c1")
    assert (message["headers"], message["read_ct"], message["priority"]) == (None, 0, 0)


def test_peek_shows_when_a_message_expires(orders):
    call("pgqueue_send", "orders", "null", "--expires", "2h")

    [message] = orders.peek()
    [told] = call_json("pgqueue_peek", "orders")
    shown = call("pgqueue_peek", "orders").out

    assert told["expires_at"] == message.expires_at.isoformat()
    assert "1 h 59 min" in shown


def test_peek_can_be_narrowed(orders):
    orders.send_batch([{"customer": n % 3} for n in range(9)])

    found = call_json("pgqueue_peek", "orders", "--conditional", '{"customer": 1}', "--qty", "2")

    assert [message["body"]["customer"] for message in found] == [1, 1]


def test_peek_at_an_empty_queue_prints_one_line(orders):
    assert call("pgqueue_peek", "orders").out == (
        "A read of queue 'orders' would find nothing now.\n"
    )


def test_peek_cuts_lines_at_the_edge_of_a_terminal(orders, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    orders.send("x" * 100)

    on_terminal = call("pgqueue_peek", "orders", terminal=True).out.splitlines()[1]
    elsewhere = call("pgqueue_peek", "orders").out.splitlines()[1]

    assert (len(on_terminal), on_terminal[-4:]) == (60, "x...")
    assert elsewhere.endswith(f'"{"x" * 100}"')


# Redrive


@pytest.fixture
def dead(orders: BoundQueue, dead_letters: BoundQueue) -> BoundQueue:
    """A dead-letter queue with three dead letters of the queue orders."""
    orders.send_batch([{"order": 1}, {"order": 2}, {"order": 3}])
    orders.fail({message.receipt: "no" for message in orders.read(qty=3)})
    return dead_letters


def test_dead_letters_go_back_where_they_came_from(dead):
    said = call("pgqueue_redrive", "dead", terminal=True)

    assert said.out == "Sent 3 messages of queue 'dead' back.\n"
    assert "100%  3 of 3 sent back" in said.err
    assert bodies(BoundQueue("orders")) == [{"order": 1}, {"order": 2}, {"order": 3}]
    assert bodies(dead) == []


def test_some_dead_letters_go_to_another_queue(dead):
    Message.objects.create_queue("repairs")
    ids = [str(message.id) for message in dead.peek(qty=2)]

    went = call_json(
        "pgqueue_redrive",
        *("dead", "--to", "repairs", "--rate", "1000"),
        *("--conditional", '{"order": 2}', "--ids", *ids),
    )

    assert went == {"queue": "dead", "redriven": 1, "left": 2}
    assert bodies(BoundQueue("repairs")) == [{"order": 2}]


def test_redrive_counts_the_messages_that_stay(dead):
    dead.send({"order": 4})

    said = call("pgqueue_redrive", "dead")

    assert said.out.splitlines() == [
        "Sent 3 messages of queue 'dead' back.",
        "Not sent: 1 message in flight, just arrived, or without a source queue. To send those "
        "without one, add --to QUEUE.",
    ]


def test_a_dropped_source_is_named_with_the_number_redriven(dead):
    Message.objects.create_queue("mails", dead_letter_queue="dead")
    BoundQueue("mails").send(1)
    BoundQueue("mails").fail({BoundQueue("mails").read()[0].receipt: "no"})
    Message.objects.drop_queue("mails")

    with pytest.raises(CommandError, match=r"no queue 'mails'.* 3 messages redriven"):
        call("pgqueue_redrive", "dead")

    assert bodies(dead) == [1]


def test_a_rate_that_makes_no_sense_is_refused(dead):
    with pytest.raises(CommandError, match="rate must be a number of messages a second"):
        call("pgqueue_redrive", "dead", "--rate", "0")

    assert len(bodies(dead)) == 3


# Replay


@pytest.fixture
def archived(orders: BoundQueue) -> BoundQueue:
    """A queue with two completed messages and a failed one."""
    orders.send_batch([{"order": 1}, {"order": 2}, {"order": 3}])
    one, two, three = orders.read(qty=3)
    orders.archive([one, two])
    orders.fail({three.receipt: "no"})
    return orders


def test_archived_messages_are_sent_again(archived):
    said = call("pgqueue_replay", "orders", "--yes", terminal=True)

    assert said.out == "Sent 3 messages of queue 'orders' again, to queue 'orders'.\n"
    assert "3 of 3 sent again" in said.err
    assert bodies(archived) == [{"order": 1}, {"order": 2}, {"order": 3}]
    assert archived.metrics().archived == 3


@pytest.mark.parametrize(
    ("option", "value", "found"),
    [("--state", "FAILED", [3]), ("--conditional", '{"order": 2}', [2])],
)
def test_some_are_sent_again_to_another_queue(archived, option, value, found):
    Message.objects.create_queue("repairs")

    sent = call_json("pgqueue_replay", "orders", "--yes", "--to", "repairs", option, value)

    assert sent == {"queue": "orders", "to": "repairs", "replayed": 1}
    assert bodies(BoundQueue("repairs")) == [{"order": number} for number in found]
    assert bodies(archived) == []


def test_the_queue_may_be_named_as_for_a_lake(archived):
    sent = call_json("pgqueue_replay", "--queue", "orders", "--rate", "1000", "--yes")

    assert sent["replayed"] == 3


def test_completed_messages_are_not_sent_again_without_a_yes(archived, monkeypatch):
    type_in(monkeypatch, "no\n")
    with pytest.raises(CommandError, match="Nothing was sent") as refused:
        call("pgqueue_replay", "orders")
    asked = refused.value.said.err  # type: ignore[attr-defined]
    with pytest.raises(CommandError, match="Add --no-input"):
        call("pgqueue_replay", "orders")  # stdin has ended, as without a terminal
    with pytest.raises(CommandError, match="Add --no-input"):
        call("pgqueue_replay", "orders", "--lake", "/nowhere")

    assert "Send 3 messages in the archive of queue 'orders' again, to queue 'orders'" in asked
    assert bodies(archived) == []
    type_in(monkeypatch, "yes\n")
    assert call_json("pgqueue_replay", "orders", "--conditional", '{"order": 2}')["replayed"] == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Name a queue, or a lake with --lake"),
        (["orders", "--where", "id = 1"], "need --lake PATH"),
        (["orders", "--dry-run"], "need --lake PATH"),
        (["orders", "--lake", "/nowhere", "--state", "FAILED"], "--state selects from the archive"),
        (["orders", "--lake", "/nowhere", "--json"], "--json does not work with --lake"),
    ],
)
def test_archive_and_lake_do_not_mix(archived, arguments, words):
    with pytest.raises(CommandError, match=words):
        call("pgqueue_replay", *arguments)

    assert bodies(archived) == []
