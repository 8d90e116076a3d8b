"""The hierarchy of errors."""

from __future__ import annotations

import pickle

import pytest

from django_pgqueue import errors
from django_pgqueue.types import Receipt

EVERY_ERROR = [
    errors.QueueNotFound("orders", "default"),
    errors.TablesMissing("relation does not exist", "default"),
    errors.UnusableDatabase("Database 'default' takes no writes"),
    errors.QueueMismatch("orders", "unlogged", True, False),
    errors.QueueBusy("orders", 30),
    errors.QueueConverting("orders"),
    errors.LeaseLost(Receipt(7, 1)),
    errors.InvalidArgument("qty must be a number"),
    errors.InvalidQueueName("a b"),
    errors.InvalidMessage("body is not JSON"),
    errors.TransactionRefused("read"),
    errors.ImmutableMessage(),
]


def test_the_tree_in_the_docstring_names_every_error():
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), errors.PgQueueError)
        assert name in (errors.__doc__ or "")


@pytest.mark.parametrize("error", EVERY_ERROR, ids=lambda error: type(error).__name__)
def test_an_error_travels_between_processes(error):
    error.note = "kept"  # type: ignore[attr-defined]

    twin = pickle.loads(pickle.dumps(error))

    assert type(twin) is type(error)
    assert (str(twin), twin.note) == (str(error), "kept")


def test_errors_are_also_those_of_the_language():
    assert issubclass(errors.QueueNotFound, LookupError)
    assert issubclass(errors.InvalidArgument, ValueError)


def test_a_failure_is_named_by_the_exceptions_line_of_a_bare_traceback():
    traceback = "Traceback (most recent call last):\n  File x, line 1\nKeyError: 7\n"

    assert "failed: KeyError: 7." in str(errors.MessageFailed("orders", 7, traceback))
    assert "failed: no reason given." in str(errors.MessageFailed("orders", 7, " "))
