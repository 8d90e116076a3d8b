"""Decoded JSON equals the result of json.loads, with and without msgspec."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from django_pgqueue.engine import decoding
from django_pgqueue.queues import message
from tests.conftest import run_sql

Decode = Callable[[str], Any]

digits = st.text("0123456789", min_size=1)
whole = digits.map(lambda text: text.lstrip("0") or "0")
# Numbers as jsonb prints them: digit by digit, however large or small.
numbers = st.one_of(
    st.builds("{}{}".format, st.sampled_from(["", "-"]), whole),
    st.builds("{}{}.{}".format, st.sampled_from(["", "-"]), whole, digits),
    st.builds("-1{}{}".format, st.integers(0, 400).map("0".__mul__), digits),
    st.builds("0.{}{}".format, st.integers(0, 400).map("0".__mul__), digits),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.integers(-(2**70), 2**70).map(str),
)
strings = st.builds(
    json.dumps, st.text(st.characters(exclude_categories=["Cs"])), ensure_ascii=st.booleans()
)
documents = st.recursive(
    st.one_of(numbers, strings, st.sampled_from(["null", "true", "false"])),
    lambda inner: st.one_of(
        st.lists(inner).map(lambda parts: f"[{', '.join(parts)}]"),
        st.dictionaries(strings, inner).map(
            lambda parts: f"{{{', '.join(f'{name}: {part}' for name, part in parts.items())}}}"
        ),
    ),
    max_leaves=50,
)

# JSON texts that jsonb accepts, in forms in which it may return them.
STORED = [
    "0",
    "-0",
    "-0.0",
    "1.10",
    "1e2",
    "1E+400",
    "-1e400",
    "1e-400",
    "0.1e-7",
    "9" * 400 + ".5",
    "9" * 4300,
    "1.7976931348623159e308",
    "18446744073709551616",
    "-9223372036854775809",
    '"\\u00e9\\ud83d\\ude00\\u0001\\u007f\\u2028\\\\u0000\\/\\n\\""',
    '{"b": 1, "a": 2, "b": {"": [null, true, false, [], {}]}}',
]


@pytest.fixture(params=["msgspec", "without msgspec"])
def decode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Decode:
    """The decoder used for messages."""
    chosen: Decode = decoding.by_json
    if request.param == "msgspec":
        pytest.importorskip("msgspec")
        chosen = decoding.by_msgspec()
    monkeypatch.setattr(message, "decode", chosen)
    return chosen


@given(documents)
@example("1" + "0" * 400 + ".5")
@example("-1e400")
@example("1.7976931348623159e308")
def test_msgspec_decodes_as_json_does(text):
    pytest.importorskip("msgspec")

    # repr distinguishes 1, 1.0 and True, and the order of names.
    assert repr(decoding.by_msgspec()(text)) == repr(json.loads(text))


# PostgreSQL's default stack allows some 16,000 levels.
@pytest.mark.parametrize("depth", [500, 2000, 5000, 8000, 16_000, 1_000_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_msgspec_decodes_what_json_decodes_however_deep(depth, opening, closing):
    pytest.importorskip("msgspec")
    text = opening * depth + "0" + closing * depth

    def levels(decode: Decode) -> int | None:
        try:
            value = decode(text)
        except RecursionError:
            return None
        if isinstance(value, decoding.Undecoded):
            return None
        count = 0
        while value != 0:
            [value] = value.values() if isinstance(value, dict) else value
            count += 1
        return count

    assert levels(decoding.by_msgspec()) in {depth, levels(json.loads)}


@pytest.mark.parametrize("text", ["1" * 4301, f'{{"n": -{"1" * 4301}}}', "[" * 10**6 + "]" * 10**6])
def test_what_json_refuses_stays_text(decode, text):
    with pytest.raises((ValueError, RecursionError)):
        json.loads(text)

    decoded = decode(text)

    assert isinstance(decoded, decoding.Undecoded)
    assert decoded == text


def test_one_body_that_json_refuses_keeps_nothing_from_the_others(decode, orders):
    pks = orders.send_batch(range(3))
    run_sql("UPDATE pgqueue_message SET body = %s::jsonb WHERE id = %s", ["7" * 5000, pks[1]])

    read = orders.read(qty=3)

    assert [each.body for each in read] == [0, "7" * 5000, 2]
    assert isinstance(read[1].body, decoding.Undecoded)
    assert orders.archive(read) == pks


@pytest.mark.parametrize("text", STORED, ids=lambda text: text[:30])
def test_a_message_has_the_values_that_json_makes_of_what_is_stored(decode, orders, text):
    pk = orders.send(0)
    [(stored,)] = run_sql(
        "UPDATE pgqueue_message SET body = %(text)s, headers = %(headers)s WHERE id = %(pk)s"
        " RETURNING body::text",
        {"text": text, "headers": json.dumps({"é": 1.0}), "pk": pk},
    )

    [read] = orders.read()

    assert repr(read.body) == repr(json.loads(stored))
    assert repr(read.headers) == "{'é': 1.0}"


def test_the_package_works_without_msgspec():
    program = """
import sys
sys.modules["msgspec"] = None  # what is not installed cannot be imported
import django
django.setup()
from django_pgqueue.engine import decoding
from django_pgqueue.queues.message import decode
assert decode is decoding.by_json
assert decode('{"a": [1, 1.0, null]}') == {"a": [1, 1.0, None]}
"""

    subprocess.run([sys.executable, "-c", program], check=True)
