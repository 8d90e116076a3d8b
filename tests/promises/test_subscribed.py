"""Each subscription gets every message of its source."""

from __future__ import annotations

_SPEED = "tests/subscriptions/test_full_speed.py"
_CHAOS = "tests/acceptance/chaos/test_subscriptions.py"
_EACH = f"{_SPEED}::test_each_subscription_gets_each_committed_message_and_none_after_its_ack"
_FAULTS = [
    f"{_SPEED}::test_cut_connections_and_kills_lose_no_message_of_a_subscription",
    f"{_CHAOS}::test_killed_frozen_and_cut_off_readers_lose_nothing_and_get_nothing_twice",
    f"{_CHAOS}::test_a_server_crash_takes_no_message_of_a_subscription",
    f"{_CHAOS}::test_a_promoted_standby_goes_on_with_every_subscription",
]
_READING = "tests/subscriptions/test_reading.py"

ELSEWHERE = {
    "A subscription gets every message of its source whose transaction commits...": [
        _EACH,
        *_FAULTS,
    ],
    "Messages dropped after keep_for are counted and reported.": [
        "tests/subscriptions/test_source.py"
        "::test_after_keep_for_the_subscription_is_told_what_it_lost"
    ],
    "After its ack, a subscription gets a message again only if seek goes back.": [
        _EACH,
        *_FAULTS,
    ],
    "A dead letter of a subscription goes back to that subscription alone.": [
        f"{_READING}::test_a_dead_letter_is_a_copy_that_comes_back_to_its_subscription_alone"
    ],
    "In a database restored from a dump on another server, a subscription reads nothing...": [
        "tests/subscriptions/test_consumer.py::test_a_consumer_waits_for_a_position_that_is_lost"
    ],
}
