"""Validators of model and form fields, with the same rules as the operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.exceptions import ValidationError

from django_pgqueue.engine import arguments
from django_pgqueue.engine.topics import topic_pattern
from django_pgqueue.errors import InvalidArgument


def validate(check: Callable[..., Any], *values: Any) -> None:
    """Call a check of arguments, and convert its InvalidArgument to a ValidationError."""
    try:
        check(*values)
    except InvalidArgument as error:
        raise ValidationError(str(error)) from error


def validate_queue_name(name: str) -> None:
    validate(arguments.queue_name, name)


def validate_topic_pattern(pattern: str) -> None:
    validate(topic_pattern, pattern)


def validate_rate(rate: str) -> None:
    validate(arguments.rate, rate, "rate")


def validate_span(span: Any) -> None:
    validate(arguments.span, span, "the length")


def validate_names(names: Any) -> None:
    """Validate a list of texts, such as names of queues."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValidationError(f'Enter a list of names, such as ["orders"], not {names!r}.')
