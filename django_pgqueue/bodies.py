"""The argument of a handler: the message, or its body as the type the handler names.

pydantic does the checking where it is installed. Without it dataclasses and TypedDicts are
checked field by field: enough to keep a malformed message out of a handler.
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
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Union

from django.utils import dateparse

from django_pgqueue.acks import Reject
from django_pgqueue.errors import InvalidArgument

pydantic: Any = import_module("pydantic") if find_spec("pydantic") else None

# From Python 3.14 on annotations are evaluated when asked for, and one that was imported for type
# checking only must not keep us from the others.
_LAZILY: dict[str, Any] = {}
if sys.version_info >= (3, 14):
    import annotationlib

    _LAZILY["annotation_format"] = annotationlib.Format.FORWARDREF

    def _annotations(function: Any) -> dict[str, Any]:
        return annotationlib.get_annotations(function, format=annotationlib.Format.FORWARDREF)

else:

    def _annotations(function: Any) -> dict[str, Any]:
        return getattr(function, "__annotations__", {})


__all__ = ["Call"]

_FILLED_IN = ("message", "context")

#: Types that JSON holds as text, and their parsers: the forms that sending writes.
_FROM_TEXT: dict[Any, Callable[[str], Any]] = {
    dt.datetime: dateparse.parse_datetime,
    dt.date: dateparse.parse_date,
    dt.time: dateparse.parse_time,
    dt.timedelta: dateparse.parse_duration,
    decimal.Decimal: decimal.Decimal,
    uuid.UUID: uuid.UUID,
}


class Call:
    """How one function wants to be called.

    >>> def charge(message): ...
    >>> Call(charge).convert is None
    True

    Raises InvalidArgument for a signature that cannot be filled.
    """

    def __init__(self, function: Callable[..., Any], *, batch: bool = False) -> None:
        self.function = function
        first, *others = _parameters(function)
        self._extra = tuple(parameter.name for parameter in others)
        hint = _hint(function, first.name)
        if batch and hint is not None:
            hint = (typing.get_args(hint) or (None,))[0]
        self.convert = _converter(hint)
        self._batch = batch

    def __call__(self, given: Any, context: Any) -> Any:
        """Call the function with a message, or a list of them.

        Raises Reject when a body does not fit, and whatever the function raises.
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

    def misfit(self, message: Any) -> Reject | None:
        """Why the body of a message does not fit, or None."""
        try:
            if self.convert is not None:
                self.convert(message.body)
        except Reject as reject:
            return reject
        return None


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    parameters = [
        parameter
        for parameter in inspect.signature(function, **_LAZILY).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    unknown = [p.name for p in parameters[1:] if p.name not in _FILLED_IN]
    if not parameters or unknown:
        raise InvalidArgument(
            f"{function.__module__}.{function.__qualname__} cannot be a consumer: it must take "
            f"a message (or its body) first"
            + (f", and nothing can fill in {', '.join(unknown)}" if unknown else "")
            + "; further parameters may be named message and context"
        )
    return parameters


def _hint(function: Callable[..., Any], name: str) -> Any:
    function = inspect.unwrap(function)
    try:
        annotation = _annotations(function).get(name)
        # This one alone: another that cannot be resolved must not take the check away.
        alone = types.SimpleNamespace(__annotations__={name: annotation})
        return typing.get_type_hints(alone, getattr(function, "__globals__", {})).get(name)
    except (AttributeError, NameError, TypeError):
        # A name imported for type checking only: Message, most likely.
        return None


def _converter(hint: Any) -> Callable[[Any], Any] | None:
    """The function from a body to that type; None when the handler takes the message itself."""
    is_model = (
        pydantic is not None and isinstance(hint, type) and issubclass(hint, pydantic.BaseModel)
    )
    if not (is_model or dataclasses.is_dataclass(hint) or typing.is_typeddict(hint)):
        return None
    # Before Python 3.12 pydantic takes the TypedDict of typing_extensions only.
    if pydantic is not None and (sys.version_info >= (3, 12) or not typing.is_typeddict(hint)):
        adapter = pydantic.TypeAdapter(hint)

        def validate(body: Any) -> Any:
            try:
                return adapter.validate_python(body)
            except pydantic.ValidationError as error:
                raise Reject(f"the body is no {hint.__name__}: {error}") from error

        return validate

    def check(body: Any) -> Any:
        try:
            return _built(hint, body, "body")
        except (TypeError, ValueError) as error:
            raise Reject(f"the body is no {hint.__name__}: {error}") from error

    return check


def _built(hint: Any, value: Any, path: str) -> Any:
    """The value as that type, or TypeError saying where it differs."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or isinstance(hint, typing.TypeVar):
        return value
    if origin in (Union, types.UnionType):
        return _first_fit(args, value, path)
    if origin in (typing.Required, typing.NotRequired) if hasattr(typing, "Required") else False:
        return _built(args[0], value, path)
    if typing.is_typeddict(hint) or dataclasses.is_dataclass(hint):
        return _record(hint, value, path)
    if origin is list and args:
        _demand(isinstance(value, list), path, "a list", value)
        return [_built(args[0], each, f"{path}[{i}]") for i, each in enumerate(value)]
    if origin is dict and args:
        _demand(isinstance(value, dict), path, "an object", value)
        return {key: _built(args[1], each, f"{path}.{key}") for key, each in value.items()}
    if origin is typing.Literal:
        _demand(value in args, path, f"one of {args}", value)
        return value
    plain = origin or (type(None) if hint is None else hint)
    if isinstance(plain, type) and issubclass(plain, enum.Enum):
        _demand(value in [member.value for member in plain], path, f"of {plain.__name__}", value)
        return plain(value)
    if plain in _FROM_TEXT and isinstance(value, str):
        return _read(plain, value, path)
    if plain is decimal.Decimal and isinstance(value, (int, float)) and value is not True:
        return decimal.Decimal(str(value))
    if plain is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    fits = isinstance(value, plain) and (plain is bool or not isinstance(value, bool))
    _demand(fits, path, f"of type {getattr(plain, '__name__', plain)}", value)
    return value


def _read(plain: type, value: str, path: str) -> Any:
    try:
        read = _FROM_TEXT[plain](value)
    except (ValueError, decimal.InvalidOperation):
        read = None
    _demand(read is not None, path, f"of type {plain.__name__}", value)
    return read


def _first_fit(options: tuple[Any, ...], value: Any, path: str) -> Any:
    reasons = []
    for option in options:
        try:
            return _built(option, value, path)
        except TypeError as error:
            reasons.append(str(error))
    raise TypeError("; or ".join(reasons))


def _record(hint: Any, value: Any, path: str) -> Any:
    _demand(isinstance(value, dict), path, "an object", value)
    hints = typing.get_type_hints(hint)
    if dataclasses.is_dataclass(hint):
        fields = {field.name: field for field in dataclasses.fields(hint) if field.init}
        required = {
            name
            for name, field in fields.items()
            if field.default is field.default_factory is dataclasses.MISSING
        }
        names = set(fields)
    else:
        names, required = set(hints), set(hint.__required_keys__)
    if missing := sorted(required - value.keys()):
        raise TypeError(f"{path} lacks {', '.join(missing)}")
    # Unknown keys are left out, as pydantic does: a sender may be newer than its consumer.
    built = {
        name: _built(hints[name], each, f"{path}.{name}")
        for name, each in value.items()
        if name in names
    }
    return hint(**built) if isinstance(hint, type) and dataclasses.is_dataclass(hint) else built


def _demand(fits: bool, path: str, wanted: str, value: Any) -> None:
    if not fits:
        raise TypeError(f"{path} should be {wanted}, not {value!r:.80}")
