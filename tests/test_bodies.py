"""The argument of a handler, checked by pydantic and without it."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import sys
import uuid
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import pytest

from django_pgqueue import bodies
from django_pgqueue.acks import Reject
from django_pgqueue.errors import InvalidArgument

if TYPE_CHECKING:
    from somewhere import Context, Message


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Line:
    article: str
    amount: int = 1


@dataclass
class Order:
    number: int
    lines: list[Line] = field(default_factory=list)
    colour: Colour = Colour.RED
    price: decimal.Decimal = decimal.Decimal(0)
    placed: dt.datetime | None = None
    day: dt.date | None = None
    key: uuid.UUID | None = None
    kind: Literal["new", "old"] = "new"
    weights: dict[str, float] = field(default_factory=dict)
    extra: Any = None

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ValueError("a number is not negative")


class Address(TypedDict):
    street: str
    zip: int


class PartlyAddress(TypedDict, total=False):
    street: str


@pytest.fixture(params=["pydantic", "without pydantic"])
def checker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "pydantic":
        pytest.importorskip("pydantic")
    else:
        monkeypatch.setattr(bodies, "pydantic", None)
    return request.param


def convert(hint: Any, body: Any) -> Any:
    def handler(given: Any) -> Any:
        return given

    handler.__annotations__["given"] = hint
    return bodies.Call(handler)(SimpleNamespace(body=body), None)


def test_a_body_becomes_what_the_handler_names(checker: str) -> None:
    body = {
        "number": 7,
        "lines": [{"article": "nail", "amount": 3}, {"article": "nut"}],
        "colour": "red",
        "price": "1.50",
        "placed": "2026-01-02T03:04:05+00:00",
        "day": "2026-01-02",
        "key": "12345678-1234-5678-1234-567812345678",
        "kind": "old",
        "weights": {"net": 1.5, "gross": 2},
        "extra": [1],
    }

    assert convert(Order, body) == Order(
        number=7,
        lines=[Line("nail", 3), Line("nut", 1)],
        colour=Colour.RED,
        price=decimal.Decimal("1.50"),
        placed=dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.timezone.utc),
        day=dt.date(2026, 1, 2),
        key=uuid.UUID("12345678-1234-5678-1234-567812345678"),
        kind="old",
        weights={"net": 1.5, "gross": 2.0},
        extra=[1],
    )


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        "order",
        {},
        {"number": "seven"},
        {"number": None},
        {"number": -1},
        {"number": 1, "lines": {}},
        {"number": 1, "lines": [{"amount": 1}]},
        {"number": 1, "lines": [{"article": 5}]},
        {"number": 1, "colour": "blue"},
        {"number": 1, "price": "dear"},
        {"number": 1, "placed": "yesterday"},
        {"number": 1, "day": "2026-13-01"},
        {"number": 1, "key": "none"},
        {"number": 1, "kind": "used"},
        {"number": 1, "weights": {"net": "heavy"}},
    ],
)
def test_a_body_that_does_not_fit_is_rejected_with_the_reason(checker: str, body: Any) -> None:
    with pytest.raises(Reject, match=r"the body is no Order: .+"):
        convert(Order, body)


def test_what_a_newer_sender_adds_is_left_out(checker: str) -> None:
    assert convert(Line, {"article": "nail", "colour": "red"}) == Line("nail")


def test_a_typed_dict_is_checked(checker: str) -> None:
    assert convert(Address, {"street": "High", "zip": 1}) == {"street": "High", "zip": 1}
    assert convert(PartlyAddress, {}) == {}
    for wrong in ({"street": "High"}, {"street": 1, "zip": 1}):
        with pytest.raises(Reject, match="the body is no Address"):
            convert(Address, wrong)


def test_a_number_is_no_truth_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "pydantic", None)

    with pytest.raises(Reject, match="should be of type int, not True"):
        convert(Line, {"article": "nail", "amount": True})


def test_a_pydantic_model_is_checked_by_itself() -> None:
    pydantic = pytest.importorskip("pydantic")

    class Charge(pydantic.BaseModel):  # type: ignore[misc,name-defined]
        order: int = pydantic.Field(gt=0)

    assert convert(Charge, {"order": 7}).order == 7
    with pytest.raises(Reject, match="the body is no Charge"):
        convert(Charge, {"order": 0})


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="pydantic takes it from Python 3.12 on")
def test_a_typed_dict_of_an_old_python_is_checked_without_pydantic() -> None:
    assert convert(Address, {"street": "High", "zip": 1})["zip"] == 1


# Signatures


@pytest.mark.parametrize("hint", [None, Any, dict, "Message", "list[Message]"])
def test_without_a_type_of_ours_the_message_itself_is_given(hint: Any) -> None:
    def handler(given: Any) -> Any:
        return given

    if hint is None:
        del handler.__annotations__["given"]
    else:
        handler.__annotations__["given"] = hint
    message = SimpleNamespace(body={"order": 7})

    assert bodies.Call(handler)(message, None) is message


def test_message_and_context_are_filled_in_by_name() -> None:
    def handler(order: Line, context: Context, message: Message, note: str = "") -> Any:
        return order, message, context

    message = SimpleNamespace(body={"article": "nail"})

    assert bodies.Call(handler)(message, "context") == (Line("nail"), message, "context")


def test_a_batch_gets_a_list_of_the_type() -> None:
    def handler(lines: list[Line]) -> Any:
        return lines

    call = bodies.Call(handler, batch=True)
    good, bad = SimpleNamespace(body={"article": "nail"}), SimpleNamespace(body={})

    assert call([good, good], None) == [Line("nail"), Line("nail")]
    assert call.misfit(good) is None
    assert isinstance(call.misfit(bad), Reject)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda: None, "it must take a message"),
        (lambda message=None: None, "it must take a message"),
        (lambda *messages: None, "it must take a message"),
        (lambda message, database: None, "nothing can fill in database"),
    ],
)
def test_a_signature_that_cannot_be_filled_is_refused(function: Any, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        bodies.Call(function)
