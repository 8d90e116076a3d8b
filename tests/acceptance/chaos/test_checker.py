"""The checker finds each kind of violation."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.acceptance.chaos.checker import State, check, starts_above


def history(*events: str) -> list[dict[str, Any]]:
    """Parse events: ``"ok a"`` is event ok of op a, and ``"acked a 2"`` concerns its second
    delivery.
    """
    split = [(*event.split(), 1)[:3] for event in events]
    return [{"event": kind, "op": op, "delivery": int(number)} for kind, op, number in split]


GOOD = history("invoke a", "ok a", "deliver a", "effect a", "acked a")
DONE = State(effects=Counter("a"), completed=Counter("a"))


def test_a_good_run_has_nothing_wrong():
    verdict = check(GOOD, DONE)

    assert (verdict.wrong, verdict.duplicated, verdict.redelivered) == ({}, [], 0)


def test_what_was_sent_and_is_nowhere_is_lost():
    assert check(history("invoke a", "ok a"), State(effects=Counter())).lost == ["a"]


def test_a_message_not_known_to_be_sent_is_not_lost():
    assert check(history("invoke a", "unknown a"), State(effects=Counter())).wrong == {}
    assert check(history("invoke a"), State(effects=Counter())).wrong == {}


def test_what_failed_or_waits_is_not_lost():
    events = history("invoke a", "ok a", "invoke b", "ok b")
    state = State(effects=Counter(), failed=Counter("a"), live={"b": "RETRYABLE"})

    assert check(events, state).wrong == {}


def test_done_without_an_effect_is_wrong():
    assert check(GOOD, State(effects=Counter(), completed=Counter("a"))).without_effect == ["a"]


def test_what_was_rolled_back_or_never_sent_is_a_phantom():
    assert check(history("invoke a", "fail a", "deliver a"), State(Counter())).phantoms == ["a"]
    assert check([], DONE).phantoms == ["a"]


def test_two_effects_of_one_message_are_duplicated():
    assert check(GOOD, State(effects=Counter("aa"), completed=Counter("a"))).duplicated == ["a"]


def test_two_places_are_ambiguous():
    state = State(effects=Counter("a"), completed=Counter("a"), failed=Counter("a"))

    assert check(GOOD, state).ambiguous == ["a"]


def test_a_delivery_after_the_ack_is_wrong_and_one_before_is_not():
    again = history("deliver a")
    once_more = history("deliver a 2")

    assert check([*GOOD, *again], DONE).after_ack == ["a"]
    assert check([*GOOD, *once_more], DONE).after_ack == ["a"]
    assert check([*GOOD[:3], *again, *GOOD[3:]], DONE).wrong == {}


def test_an_earlier_delivery_that_starts_late_is_not_wrong():
    events = history("invoke a", "ok a", "deliver a 2", "effect a", "acked a 2", "deliver a 1")

    assert check(events, DONE).wrong == {}


def test_a_locked_delivery_that_was_not_counted_starts_late_under_the_same_number():
    [late] = history("deliver a")
    [counted] = history("deliver a 2")

    assert check([*GOOD, {**late, "queue": "locked"}], DONE).wrong == {}
    assert check([*GOOD, {**counted, "queue": "locked"}], DONE).after_ack == ["a"]


def test_redeliveries_are_counted_with_those_asked_for():
    events = [*GOOD[:2], *history("deliver a", "fault a", "deliver a", "deliver a", "effect a")]

    verdict = check(events, DONE)

    assert (verdict.redelivered, verdict.asked_for) == (2, 1)


def test_a_lease_that_is_left_is_wrong():
    state = State(effects=Counter(), live={"a": "PROCESSING"})

    assert check(history("invoke a", "ok a"), state).leases == ["a"]


def test_starts_above_a_rate_are_found_in_the_worst_window():
    assert starts_above([0, 0, 1, 2, 3], rate=1, burst=2) == 0
    assert starts_above([0, 9, 9, 9.5], rate=1, burst=2) == 0.5
    assert starts_above([0, 9, 9, 9.5, 10, 10.5, 11], rate=2, burst=2) == 0
