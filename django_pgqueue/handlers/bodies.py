"""Makes a handler's argument: the message, or its body converted to the annotated type.

pydantic validates its own models and dataclasses. This module validates other dataclasses and
TypedDicts, whether or not pydantic is installed. It is strict: ``"5"`` is not an int.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import inspect
import sys
import types
import typing
import uuid
from collections import abc
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any, Union

from django.utils import dateparse

from django_pgqueue.acks import Reject
from django_pgqueue.errors import InvalidArgument

# Python 3.14 evaluates annotations lazily. FORWARDREF accepts names that are not defined: one such
# name would otherwise make all annotations of the function unreadable.
if sys.version_info >= (3, 14):
    from annotationlib import Format

    _signature = partial(inspect.signature, annotation_format=Format.FORWARDREF)
else:
    _signature = inspect.signature

_FILLED_IN = ("message", "context")

#: The import path of the class of messages, which this module is too low to import.
_MESSAGE = "django_pgqueue.queues.message.Message"

#: A function that makes a field's value from a JSON value and its path. Errors name the path.
Make = Callable[[Any, str], Any]

#: Types that a send writes as text in JSON, with their parsers.
_FROM_TEXT: dict[Any, Callable[[str], Any]] = {
    dt.datetime: dateparse.parse_datetime,
    dt.date: dateparse.parse_date,
    dt.time: dateparse.parse_time,
    dt.timedelta: dateparse.parse_duration,
    decimal.Decimal: decimal.Decimal,
    uuid.UUID: uuid.UUID,
}

#: Types of dict keys, with their parsers: in JSON all keys are text.
_FROM_KEY: dict[Any, Callable[[str], Any]] = {**_FROM_TEXT, int: int, float: float}

#: Types that are lists in JSON, with their constructors.
_FROM_LIST: dict[Any, Callable[[list[Any]], Any]] = {
    list: list,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
    abc.Sequence: list,
    abc.MutableSequence: list,
    abc.Collection: list,
    abc.Iterable: list,
    abc.Set: frozenset,
}

#: The types that a list is, without a conversion.
_LISTS = [plain for plain, build in _FROM_LIST.items() if build is list]

_FROM_OBJECT = (dict, abc.Mapping, abc.MutableMapping)


class Call:
    """A handler's function, with its parameters and a converter for its body type.

    >>> def charge(message): ...
    >>> Call(charge).convert is None
    True

    Raises InvalidArgument for a parameter that cannot be filled in, and for an annotation of the
    first one that is no type of messages or bodies.
    """

    def __init__(self, function: Callable[..., Any], *, batch: bool = False) -> None:
        self.function = function
        first, *others = _parameters(function)
        self._extra = tuple(parameter.name for parameter in others)
        hint = _body_type(function, first, batch)
        self._maker = None if hint is None else _lazy_maker(hint)
        self.convert = None if self._maker is None else _converter(hint, self._maker)
        self._batch = batch

    def __call__(self, given: Any, context: Any) -> Any:
        """Call the function with a message, or a list of them.

        Raises Reject if a body does not fit the type, and any exception of the function.
        """
        if self.convert is None:
            first = given
        elif self._batch:
            first = [self.convert(message.body) for message in given]
        else:
            first = self.convert(given.body)
        if not self._extra:
            return self.function(first)
        extra = {"message": given, "context": context}
        return self.function(first, **{name: extra[name] for name in self._extra})

    def resolve(self) -> None:
        """Evaluate the annotations of the body type, once all modules are imported.

        Raises InvalidArgument for a name that is not defined.
        """
        try:
            if self._maker is not None:
                self._maker()
        except NameError as error:
            raise InvalidArgument(
                f"{name_of(self.function)} cannot be a consumer: its type of bodies has an "
                f"annotation that cannot be evaluated: {error}. Import the name where the type is "
                f"defined, and not only for type checkers"
            ) from error

    def misfit(self, message: Any) -> Reject | None:
        """Return the Reject for a body that does not fit the type; None if it fits."""
        try:
            if self.convert is not None:
                self.convert(message.body)
        except Reject as reject:
            return reject
        return None


def name_of(function: Any) -> str:
    """Return the import path of a function; of an object with ``__call__``, that of its class."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters without a default. Raises InvalidArgument if no call fills them in."""
    empty = inspect.Parameter.empty
    given = [
        parameter
        for parameter in _signature(function).parameters.values()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    required = [parameter for parameter in given if parameter.default is empty]
    unknown = [p.name for p in required[1:] if p.name not in _FILLED_IN]
    if given and given[0].default is not empty and given[0].kind is not given[0].KEYWORD_ONLY:
        wrong = (
            f"its first parameter {given[0].name} has a default, but always gets the message or "
            f"its body: remove the default"
        )
    elif not required or unknown:
        wrong = (
            "its first parameter must take the message or its body, and any other must be named "
            "message or context" + (f", not {', '.join(unknown)}" if unknown else "")
        )
    elif required[0].kind is inspect.Parameter.KEYWORD_ONLY:
        wrong = (
            f"its parameter {required[0].name} is keyword-only, but the message or its body is "
            f"passed by position: put it first, with no * before it"
        )
    elif required[0].name == "context":
        wrong = (
            "its first parameter is named context, but takes the message or its body: put a "
            "parameter for that before it"
        )
    else:
        return required
    raise InvalidArgument(f"{name_of(function)} cannot be a consumer: {wrong}")


def _body_type(function: Callable[..., Any], parameter: inspect.Parameter, batch: bool) -> Any:
    """Return the type of bodies that a parameter's annotation names; None if it names messages.

    Raises InvalidArgument for any other annotation.
    """
    if parameter.annotation is parameter.empty:
        return None
    try:
        hint = _evaluated(function, parameter)
    except Exception as error:
        raise _refusal(
            function,
            parameter,
            f"which cannot be evaluated: {error}. Import the type above the handler, and not only "
            f"for type checkers",
        ) from error
    plain, args = typing.get_origin(hint) or hint, typing.get_args(hint)
    if batch and plain is not Any:
        if plain not in _LISTS:
            raise _refusal(function, parameter, "but batch=True passes a list: annotate list[...]")
        hint = args[0] if args else Any
    elif plain in _LISTS and any(map(_is_message, args)):
        raise _refusal(
            function, parameter, "but takes one message: annotate Message, or use batch=True"
        )
    if _is_message(hint):
        return None
    if not _is_body(hint):
        raise _refusal(
            function,
            parameter,
            "which is not the type of a message or of a body: annotate Message, dict, list, Any, a "
            "dataclass, a TypedDict or a pydantic model",
        )
    return hint


def _evaluated(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """Evaluate the annotation of a parameter. Raises whatever the evaluation raises."""
    while isinstance(function, partial):
        function = function.func
    function = inspect.unwrap(function)
    if not hasattr(function, "__qualname__"):  # an object
        function = type(function).__call__
    # Resolve only this annotation: the others may have names that cannot be resolved.
    alone = types.SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    names = getattr(function, "__globals__", {})
    return typing.get_type_hints(alone, names)[parameter.name]


def _refusal(
    function: Callable[..., Any], parameter: inspect.Parameter, why: str
) -> InvalidArgument:
    given = parameter.annotation
    shown = getattr(given, "__forward_arg__", given)
    shown = shown if isinstance(shown, str) else inspect.formatannotation(shown)
    return InvalidArgument(
        f"{name_of(function)} cannot be a consumer: its parameter {parameter.name} is annotated "
        f"{shown}, {why}"
    )


def _lazy_maker(hint: Any) -> Callable[[], Make]:
    """Return a function that returns the one that makes values of a type, from its first call on.

    Raises InvalidArgument for a type with a field that cannot be made from JSON.
    """
    maker = cache(lambda: _maker(hint, _shown(hint), {}))
    # A type that is defined below the handler is resolved later.
    with suppress(NameError):
        maker()
    return maker


def _shown(hint: Any) -> str:
    is_class = isinstance(hint, type) and typing.get_origin(hint) is None
    return hint.__name__ if is_class else str(hint)


def _converter(hint: Any, maker: Callable[[], Make]) -> Callable[[Any], Any]:
    """Return a function that converts bodies to a type."""
    name = _shown(hint)

    def convert(body: Any) -> Any:
        make = maker()
        try:
            return make(body, "body")
        except (TypeError, ValueError, OverflowError) as error:
            raise Reject(f"the body is not a valid {name}: {error}") from error

    return convert


def _is_message(hint: Any) -> bool:
    return isinstance(hint, type) and name_of(hint) == _MESSAGE


def _is_body(hint: Any) -> bool:
    """Whether a type is one of bodies: JSON objects, lists, any JSON, or unions of these."""
    plain = typing.get_origin(hint) or hint
    if plain in (Union, types.UnionType):
        return all(each is type(None) or _is_body(each) for each in typing.get_args(hint))
    for aliased in ("__value__", "__supertype__"):
        if hasattr(plain, aliased):
            return _is_body(getattr(plain, aliased))
    known = [Any, object, *_FROM_LIST, *_FROM_OBJECT]
    return plain in known or _is_record(plain) or _is_pydantic(plain)


def _is_record(hint: Any) -> bool:
    return typing.is_typeddict(hint) or (
        isinstance(hint, type) and dataclasses.is_dataclass(hint) and not _is_pydantic(hint)
    )


def _is_pydantic(hint: Any) -> bool:
    return isinstance(hint, type) and hasattr(hint, "__pydantic_validator__")


def _maker(hint: Any, where: str, known: dict[Any, Make]) -> Make:
    """Return a function that makes a value of this type from JSON.

    ``where`` is the name of the field in errors. ``known`` has the functions made so far, since a
    type may contain itself. Raises InvalidArgument for a type that cannot be made from JSON.
    """
    plain, args = typing.get_origin(hint) or hint, typing.get_args(hint)
    if plain in (Any, object) or isinstance(plain, typing.TypeVar):
        return lambda value, path: value
    if plain in (Union, types.UnionType):
        return _first_fit([_maker(each, where, known) for each in args])
    if plain is typing.Literal:
        return _one_of(args, f"one of {args}", lambda value: value)
    if plain in _FROM_LIST:
        return _list_maker(plain, args, where, known)
    if plain in _FROM_OBJECT:
        return _object_maker(args, where, known)
    if _is_pydantic(plain):
        # pydantic is imported already, since the type uses it.
        validate = sys.modules["pydantic"].TypeAdapter(hint).validate_python
        return lambda value, path: validate(value)
    if _is_record(plain) or hasattr(plain, "__value__"):
        if plain not in known:
            # A type may contain itself: until its function is made, this placeholder stands for it.
            known[plain] = lambda value, path: known[plain](value, path)
            if _is_record(plain):
                known[plain] = _record_maker(plain, known)
            else:
                known[plain] = _maker(plain.__value__, where, known)
        return known[plain]
    if hasattr(plain, "__supertype__"):
        return _maker(plain.__supertype__, where, known)
    if isinstance(plain, dataclasses.InitVar):
        return _maker(plain.type, where, known)
    if isinstance(plain, type) and issubclass(plain, enum.Enum):
        values = [member.value for member in plain]
        return _one_of(values, f"a value of {plain.__name__}", plain)
    if plain in _FROM_TEXT:
        return _from_text(plain, _FROM_TEXT)
    if plain in (str, int, float, bool, None, type(None)):
        return _plain_maker(plain or type(None))
    name = hint.__name__ if isinstance(hint, type) else hint
    raise InvalidArgument(
        f"{where} is of type {name}, which cannot be made from JSON. Use another type, or a "
        f"pydantic model, which supports more types"
    )


def _list_maker(plain: Any, args: Any, where: str, known: dict[Any, Make]) -> Make:
    build = _FROM_LIST[plain]
    if plain is tuple and args and args[-1] is not Ellipsis:
        makers = [_maker(each, where, known) for each in args]

        def make_tuple(value: Any, path: str) -> Any:
            fits = isinstance(value, list) and len(value) == len(makers)
            _demand(fits, path, f"a list of {len(makers)} items", value)
            pairs = zip(makers, value, strict=True)
            return tuple(make(each, f"{path}[{i}]") for i, (make, each) in enumerate(pairs))

        return make_tuple
    make_one = _maker(args[0] if args else Any, where, known)

    def make_list(value: Any, path: str) -> Any:
        _demand(isinstance(value, list), path, "a list", value)
        return build([make_one(each, f"{path}[{i}]") for i, each in enumerate(value)])

    return make_list


def _object_maker(args: Any, where: str, known: dict[Any, Make]) -> Make:
    key, of = args or (Any, Any)
    make_key = _from_text(key, _FROM_KEY) if key in _FROM_KEY else _maker(key, where, known)
    make_value = _maker(of, where, known)

    def make(value: Any, path: str) -> Any:
        _demand(isinstance(value, dict), path, "an object", value)
        return {
            make_key(name, f"a key of {path}"): make_value(each, f"{path}.{name}")
            for name, each in value.items()
        }

    return make


def _record_maker(hint: Any, known: dict[Any, Make]) -> Make:
    hints = typing.get_type_hints(hint)
    if typing.is_typeddict(hint):
        names, required, build = list(hints), set(hint.__required_keys__), dict
    else:
        parameters = _signature(hint).parameters.values()
        names, build = [parameter.name for parameter in parameters], hint
        required = {each.name for each in parameters if each.default is each.empty}
    makers = {
        name: _maker(hints.get(name, Any), f"{hint.__name__}.{name}", known) for name in names
    }

    def make(value: Any, path: str) -> Any:
        _demand(isinstance(value, dict), path, "an object", value)
        if missing := sorted(required - value.keys()):
            raise TypeError(f"{path} has no {', '.join(missing)}")
        # Unknown keys are ignored: a sender may be newer than its consumer.
        return build(
            **{
                name: make_field(value[name], f"{path}.{name}")
                for name, make_field in makers.items()
                if name in value
            }
        )

    return make


def _first_fit(makers: list[Make]) -> Make:
    def make(value: Any, path: str) -> Any:
        reasons = []
        for each in makers:
            try:
                return each(value, path)
            except (TypeError, ValueError) as error:
                reasons.append(str(error))
        raise TypeError("; or ".join(reasons))

    return make


def _one_of(values: Sequence[Any], wanted: str, build: Callable[[Any], Any]) -> Make:
    def make(value: Any, path: str) -> Any:
        _demand(value in values, path, wanted, value)
        return build(value)

    return make


def _from_text(plain: Any, parsers: dict[Any, Callable[[str], Any]]) -> Make:
    def make(value: Any, path: str) -> Any:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        text = str(value) if plain is decimal.Decimal and is_number else value
        made = None
        if isinstance(text, str):
            with suppress(ValueError, decimal.InvalidOperation):
                made = parsers[plain](text)
        _demand(made is not None, path, f"of type {plain.__name__}", value)
        return made

    return make


def _plain_maker(plain: type) -> Make:
    def make(value: Any, path: str) -> Any:
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if plain is float and is_whole:
            return float(value)
        fits = is_whole if plain is int else isinstance(value, plain)
        _demand(fits, path, f"of type {plain.__name__}", value)
        return value

    return make


def _demand(fits: bool, path: str, wanted: str, value: Any) -> None:
    if not fits:
        raise TypeError(f"{path} should be {wanted}, not {value!r:.80}")
