"""For type checkers: which functions @consumer decorates, with and without ``batch=True``."""

import datetime as dt
from collections.abc import Callable, Collection, Mapping
from decimal import Decimal
from enum import Enum
from typing import Any, ClassVar, Concatenate, Generic, Literal, ParamSpec, Protocol, overload
from uuid import UUID

from typing_extensions import TypeVar

from django_pgqueue.queues.message import Message

class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]

class _PydanticModel(Protocol):
    __pydantic_validator__: ClassVar[Any]

_Object = _Dataclass | _PydanticModel | Mapping[Any, Any] | Mapping[str, object]
_Time = dt.date | dt.time | dt.timedelta
# Not Message: a list of messages is for batch=True.
_Item = _Object | Collection[Any] | str | float | Enum | Decimal | UUID | _Time | None

P = ParamSpec("P")
R = TypeVar("R")
Batch = TypeVar("Batch", Literal[True], Literal[False], default=Literal[False])
Body = TypeVar("Body", bound=_Object | Collection[_Item] | None)
TakesMessage = TypeVar("TakesMessage", bound=Callable[Concatenate[Message, ...], Any])
TakesList = TypeVar("TakesList", bound=Callable[Concatenate[list[Any], ...], Any])

class Decorator(Generic[Batch]):
    @overload
    def __call__(self: Decorator[Literal[True]], function: TakesList, /) -> TakesList: ...
    @overload
    def __call__(self: Decorator[Literal[False]], function: TakesMessage, /) -> TakesMessage: ...
    @overload
    def __call__(
        self: Decorator[Literal[False]], function: Callable[Concatenate[Body, P], R], /
    ) -> Callable[Concatenate[Body, P], R]: ...
