"""Validators of model and form fields, with the rules of the operations.

They raise ValidationError for what the operations refuse with InvalidArgument.
"""

from __future__ import annotations

from django.core.exceptions import ValidationError

from django_pgqueue import arguments
from django_pgqueue.arguments import queue_name
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.topics import topic_pattern


def validate_queue_name(name: str) -> None:
    try:
        queue_name(name)
    except InvalidArgument as error:
        raise ValidationError(str(error)) from error


def validate_topic_pattern(pattern: str) -> None:
    try:
        topic_pattern(pattern)
    except InvalidArgument as error:
        raise ValidationError(str(error)) from error


def validate_rate(rate: str) -> None:
    try:
        arguments.rate(rate, "rate")
    except InvalidArgument as error:
        raise ValidationError(str(error)) from error
