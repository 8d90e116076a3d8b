"""The argument of a handler: the message, or its body as a checked type."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field, make_dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, Literal, NewType, TypedDict

import pytest

from django_pgqueue.acks import Reject
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.handlers import bodies
from django_pgqueue.models import Message

if TYPE_CHECKING:
    from somewhere import Context


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


def convert(hint: Any, body: Any) -> Any:
    def handler(given: Any) -> Any:
        return given

    handler.__annotations__["given"] = hint
    return bodies.Call(handler)(SimpleNamespace(body=body), None)


def test_a_body_becomes_what_the_handler_names():
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
def test_a_body_that_does_not_fit_is_rejected_with_the_reason(body):
    with pytest.raises(Reject, match=r"the body is not a valid Order: .+"):
        convert(Order, body)


def test_what_a_newer_sender_adds_is_left_out():
    assert convert(Line, {"article": "nail", "colour": "red"}) == Line("nail")


def test_a_typed_dict_is_checked():
    assert convert(Address, {"street": "High", "zip": 1}) == {"street": "High", "zip": 1}
    assert convert(PartlyAddress, {}) == {}
    for wrong in ({"street": "High"}, {"street": 1, "zip": 1}):
        with pytest.raises(Reject, match="the body is not a valid Address"):
            convert(Address, wrong)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"article": "nail", "amount": True}, "body.amount should be of type int, not True"),
        ({"article": "nail", "amount": "5"}, "body.amount should be of type int, not '5'"),
        ({"article": "nail", "amount": 5.0}, r"body.amount should be of type int, not 5\.0"),
        ({"article": 5}, "body.article should be of type str, not 5"),
    ],
)
def test_only_types_that_json_lacks_are_converted(body, reason):
    with pytest.raises(Reject, match=reason):
        convert(Line, body)


def test_the_rule_is_the_same_with_and_without_pydantic():
    code = """
import sys
if sys.argv[1] == "without":
    sys.modules["pydantic"] = None
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TypedDict
from django_pgqueue.handlers import bodies

@dataclass
class Charge:
    order: int

class Address(TypedDict):
    zip: int

def charge(order: Charge): print(order)
def move(address: Address): print(address)

for handler, body in [
    (charge, {"order": 5}), (charge, {"order": "5"}), (charge, {"order": 5.0}),
    (charge, {"order": True}), (charge, {"order": 5, "more": 1}), (charge, {}),
    (move, {"zip": 5}), (move, {"zip": "5"}), (move, {"zip": 5, "more": 1}),
]:
    try:
        bodies.Call(handler)(SimpleNamespace(body=body), None)
    except Exception as error:
        print(error)
"""

    with_it, without = (
        subprocess.run(
            [sys.executable, "-c", code, each], capture_output=True, text=True, check=True
        ).stdout
        for each in ("with", "without")
    )

    assert with_it == without
    assert "Charge(order=5)" in with_it


@dataclass
class Shelf:
    names: tuple[str, ...] = ()
    size: tuple[int, float] = (0, 0.0)
    tags: frozenset[str] = frozenset()
    days: Sequence[dt.date] = ()
    counts: Mapping[int, int] = field(default_factory=dict)
    anything: object = None
    bare: list = field(default_factory=list)  # type: ignore[type-arg]
    inner: Shelf | None = None
    volume: InitVar[int] = 0
    label: Annotated[str, "short"] = ""
    number: Number = 0  # type: ignore[assignment]

    def __post_init__(self, volume: int) -> None:
        self.doubled = volume * 2


Number = NewType("Number", int)


def test_collections_are_made_of_lists_and_objects():
    made = convert(
        Shelf,
        {
            "names": ["a", "b"],
            "size": [1, 2],
            "tags": ["x", "x"],
            "days": ["2026-01-02"],
            "counts": {"7": 1},
            "anything": {"a": 1},
            "bare": [1, "a"],
            "inner": {"names": ["c"]},
            "volume": 3,
            "label": "l",
            "number": 8,
        },
    )

    assert made.names == ("a", "b")
    assert made.size == (1, 2.0)
    assert made.tags == {"x"}
    assert made.days == [dt.date(2026, 1, 2)]
    assert made.counts == {7: 1}
    assert (made.anything, made.bare) == ({"a": 1}, [1, "a"])
    assert made.inner.names == ("c",)
    assert (made.doubled, made.label, made.number) == (6, "l", 8)


@pytest.mark.parametrize(
    "body",
    [
        {"names": "ab"},
        {"names": [1]},
        {"size": [1]},
        {"tags": {}},
        {"counts": {"seven": 1}},
        {"inner": {"names": [1]}},
        {"number": "8"},
    ],
)
def test_collections_are_checked(body):
    with pytest.raises(Reject, match=r"the body is not a valid Shelf: .*body"):
        convert(Shelf, body)


def test_a_type_that_json_cannot_give_is_refused_with_the_handler():
    with pytest.raises(
        InvalidArgument,
        match=r"Upload\.path is of type Path.*Use another type, or a pydantic model",
    ):
        convert(Upload, {"path": "/tmp"})


@dataclass
class Upload:
    path: Path


def test_a_type_may_be_defined_below_the_handler():
    def handler(early: Early) -> Any:
        return early

    late = globals().pop("Late")
    try:
        call = bodies.Call(handler)
    finally:
        globals()["Late"] = late

    given = SimpleNamespace(body={"late": {"article": "nail"}})
    assert call(given, None) == Early(Late("nail"))


@dataclass
class Early:
    late: Late


@dataclass
class Late:
    article: str


def test_a_pydantic_model_is_checked_by_itself():
    pydantic = pytest.importorskip("pydantic")

    class Charge(pydantic.BaseModel):  # type: ignore[misc,name-defined]
        order: int = pydantic.Field(gt=0)

    assert convert(Charge, {"order": 7}).order == 7
    with pytest.raises(Reject, match="the body is not a valid Charge"):
        convert(Charge, {"order": 0})


def test_a_dataclass_may_contain_a_pydantic_model():
    pydantic = pytest.importorskip("pydantic")

    class Charge(pydantic.BaseModel):  # type: ignore[misc,name-defined]
        order: int

    @pydantic.dataclasses.dataclass
    class Refund:
        order: int

    both = make_dataclass("Both", [("charge", Charge), ("refund", Refund | None, None)])

    assert convert(both, {"charge": {"order": "7"}}).charge.order == 7
    assert convert(both, {"charge": {"order": 7}, "refund": {"order": "8"}}).refund.order == 8
    assert convert(Refund, {"order": "8"}).order == 8
    with pytest.raises(Reject, match=r"(?s)the body is not a valid Both: .*valid integer"):
        convert(both, {"charge": {"order": "seven"}})


# Signatures


def annotated(hint: Any) -> Any:
    def handler(given: Any) -> Any:
        return given

    handler.__annotations__["given"] = hint
    return handler


def test_without_an_annotation_the_message_itself_is_given():
    message = SimpleNamespace(body={"order": 7})

    for handler in (lambda given: given, annotated(Message), annotated("Message")):
        assert bodies.Call(handler)(message, None) is message
    for handler in (lambda given: given, annotated("list[Message]"), annotated(Sequence[Message])):
        assert bodies.Call(handler, batch=True)([message], None) == [message]


BODIES = [
    (Any, [{"order": 7}, [7], 7, "7", None], []),
    (object, [{"order": 7}, [7], 7, "7", None], []),
    (dict, [{"order": 7}, {}], [[7], 7, "7", None]),
    (dict[str, Any], [{"order": 7}, {}], [[7], 7, "7", None]),
    ("Mapping[str, int]", [{"order": 7}], [{"order": "7"}, None]),
    (list, [[7], []], [{"order": 7}, 7, "7", None]),
    (list[dict[str, int]], [[{"order": 7}]], [[7], {"order": 7}]),
    (Line | list[Line], [], [{"order": 7}, None]),
    (dict[str, Any] | None, [{"order": 7}, None], [[7]]),
    (NewType("Body", dict[str, Any]), [{"order": 7}], [[7]]),
]


@pytest.mark.parametrize(("hint", "good", "bad"), BODIES, ids=str)
def test_an_annotation_of_plain_json_gives_the_body_if_it_fits(hint, good, bad):
    in_batch = list[hint] if not isinstance(hint, str) else f"list[{hint}]"

    for body in good:
        assert convert(hint, body) == body
        given = [SimpleNamespace(body=body)]
        assert bodies.Call(annotated(in_batch), batch=True)(given, None) == [body]
    for body in bad:
        with pytest.raises(Reject, match="the body is not a valid "):
            convert(hint, body)


def test_a_bare_list_in_a_batch_is_a_list_of_any_bodies():
    for hint in (list, Any, list[Any]):
        given = [SimpleNamespace(body=7), SimpleNamespace(body=None)]
        assert bodies.Call(annotated(hint), batch=True)(given, None) == [7, None]


def test_the_annotation_of_an_object_and_of_a_partial_function_counts():
    class Charging:
        def __call__(self, line: Line) -> Any:
            return line

        def charge(self, line: Line) -> Any:
            return line

    def charge(bank: str, line: Line) -> Any:
        return line

    given = SimpleNamespace(body={"article": "nail"})
    for handler in (Charging(), Charging().charge, partial(charge, "bank")):
        assert bodies.Call(handler)(given, None) == Line("nail")


ALLOWED = "annotate Message, dict, list, Any, a dataclass, a TypedDict or a pydantic model"
MISTAKES = [
    (int, f"annotated int, which .*{ALLOWED}"),
    (str, ALLOWED),
    (None, ALLOWED),
    (5, ALLOWED),
    (dt.datetime, ALLOWED),
    (int | Line, ALLOWED),
    (Message | None, ALLOWED),
    (type("Other", (), {}), ALLOWED),
    ("Mesage", "annotated Mesage, which cannot be evaluated: name 'Mesage' is not defined"),
    ("list[Mesage]", "name 'Mesage' is not defined. Import the type above the handler"),
    ("Context", "Context, which cannot be evaluated.*and not only for type checkers"),
    ("models.Message", "name 'models' is not defined"),
    ("dt.Date", "has no attribute 'Date'"),
    ("Line(", "cannot be evaluated"),
    (list[Message], "takes one message: annotate Message, or use batch=True"),
    (list[Path], "is of type Path, which cannot be made from JSON"),
]


@pytest.mark.parametrize(("hint", "reason"), MISTAKES, ids=str)
def test_an_annotation_that_is_not_understood_is_refused_with_the_handler(hint, reason):
    with pytest.raises(InvalidArgument, match=reason):
        bodies.Call(annotated(hint))


@pytest.mark.parametrize(
    ("hint", "reason"),
    [
        ("Message", r"Message, but batch=True passes a list: annotate list\[\.\.\.\]"),
        (Line, "but batch=True passes a list"),
        (dict, "but batch=True passes a list"),
        (list[int], ALLOWED),
        ("list[Mesage]", "name 'Mesage' is not defined"),
    ],
    ids=str,
)
def test_a_batch_handler_with_an_annotation_of_one_message_is_refused(hint, reason):
    with pytest.raises(InvalidArgument, match=reason):
        bodies.Call(annotated(hint), batch=True)


def test_message_and_context_are_filled_in_by_name():
    def handler(order: Line, context: Context, message: Message, note: str = "") -> Any:
        return order, message, context

    message = SimpleNamespace(body={"article": "nail"})

    assert bodies.Call(handler)(message, "context") == (Line("nail"), message, "context")


def test_a_batch_gets_a_list_of_the_type():
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
        (lambda: None, "its first parameter must take the message"),
        (lambda message=None: None, "parameter message has a default.*: remove the default"),
        (lambda message=None, *, context: None, "its first parameter message has a default"),
        (lambda *messages: None, "its first parameter must take the message"),
        (lambda message, database: None, "message or context, not database"),
        (lambda *, message: None, r"message is keyword-only.*: put it first, with no \* before"),
        (lambda context: None, "parameter is named context.*: put a parameter for that before it"),
        (lambda context, message: None, "first parameter is named context"),
    ],
)
def test_a_signature_that_cannot_be_filled_is_refused(function, reason):
    with pytest.raises(InvalidArgument, match=reason):
        bodies.Call(function)
