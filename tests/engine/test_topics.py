"""Topic patterns match as in AMQP."""

from __future__ import annotations

import time
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_pgqueue.engine.topics import Router, routing_key, topic_pattern
from django_pgqueue.errors import InvalidArgument


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("a", ["a"], ["b", "a.a", "A"]),
        ("a.b", ["a.b"], ["a", "a.b.c", "a.c"]),
        ("*", ["a", "b"], ["a.b"]),
        ("a.*", ["a.b"], ["a", "a.b.c"]),
        ("*.b", ["a.b"], ["b", "a.a.b"]),
        ("#", ["a", "a.b", "a.b.c"], []),
        ("logs.#", ["logs", "logs.a", "logs.a.b"], ["log", "a.logs"]),
        ("#.error", ["error", "a.error", "a.b.error"], ["error.a", "a.errors"]),
        ("#.x.#", ["x", "x.y", "q.x", "q.x.y"], ["y", "q.y"]),
        ("#.#", ["a", "a.b"], []),
        ("*.#", ["a", "a.b", "a.b.c"], []),
        ("#.*", ["a", "a.b"], []),
        ("a.#.b", ["a.b", "a.x.b", "a.x.y.b", "a.b.b"], ["a", "b", "a.b.x"]),
        ("a.*.#.*", ["a.x.y", "a.x.y.z"], ["a.x"]),
    ],
)
def test_a_pattern_matches_as_in_amqp(pattern, matching, others):
    router = Router([pattern])

    assert [key for key in matching if not router.match(key)] == []
    assert [key for key in others if router.match(key)] == []


def test_patterns_that_mean_the_same_all_match():
    assert Router(["#", "#.#", "a.#", "a.#.#"]).match("a") == {"#", "#.#", "a.#", "a.#.#"}


def by_definition(pattern: list[str], key: list[str]) -> bool:
    """AMQP's definition, implemented literally."""

    @cache
    def fits(p: int, k: int) -> bool:
        if p == len(pattern):
            return k == len(key)
        if pattern[p] == "#":
            return fits(p + 1, k) or (k < len(key) and fits(p, k + 1))
        return k < len(key) and pattern[p] in ("*", key[k]) and fits(p + 1, k + 1)

    return fits(0, 0)


@given(
    patterns=st.lists(
        st.lists(st.sampled_from(["a", "b", "*", "#"]), min_size=1, max_size=6), max_size=8
    ),
    key=st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=6),
)
def test_many_patterns_at_once_match_as_each_by_definition(patterns, key):
    expected = {".".join(pattern) for pattern in patterns if by_definition(pattern, key)}

    assert Router([".".join(pattern) for pattern in patterns]).match(".".join(key)) == expected


@pytest.mark.parametrize("key", ["", ".", "a.", ".a", "a..b", "a b", "a.*", "#", "é", "a" * 256, 7])
def test_what_is_no_routing_key_is_refused(key):
    with pytest.raises(InvalidArgument, match="is not a routing key"):
        routing_key(key)


@pytest.mark.parametrize("pattern", ["", "a.", "a..b", "a*", "**", "#a", "a b", "a" * 256, None])
def test_what_is_no_pattern_is_refused(pattern):
    with pytest.raises(InvalidArgument, match="is not a topic pattern"):
        topic_pattern(pattern)


def test_a_thousand_bindings_are_matched_in_less_than_a_millisecond():
    patterns = [f"app{n % 50}.{kind}.{n}" for n in range(250) for kind in ("*", "#", "x", "#.y")]
    router = Router(patterns)
    assert len(set(patterns)) == 1000

    took = []
    for _ in range(20):
        start = time.perf_counter()
        found = router.match("app7.x.y.z.7")
        took.append(time.perf_counter() - start)

    assert found == {"app7.#.7"}
    assert min(took) < 0.001
