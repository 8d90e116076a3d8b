"""Validators of model and form fields, which check as the operations do."""

from __future__ import annotations

from django.core.exceptions import ValidationError

from django_pgqueue.arguments import queue_name
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.topics import topic_pattern


def validate_queue_name(name: str) -> None:
    """:func:`~django_pgqueue.arguments.queue_name` as a validator."""
    try:
        queue_name(name)
    except InvalidArgument as error:
        raise ValidationError(str(error)) from error


def validate_topic_pattern(pattern: str) -> None:
    """:func:`~django_pgqueue.topics.topic_pattern` as a validator."""
    try:
        topic_pattern(pattern)
    except InvalidArgument as error:
        raise ValidationError(str(error)) from error
