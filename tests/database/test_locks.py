"""Take locks that block other sessions: wait briefly, and retry after a pause."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat

import psycopg
import pytest
from django.db import OperationalError, connection, transaction

from django_pgqueue.database import locks
from django_pgqueue.errors import QueueBusy
from tests.conftest import run_sql


def failing(*errors: psycopg.Error) -> tuple[Callable[[float], str], list[float]]:
    """Fails several times before it succeeds, and records the permitted wait of each try."""
    waits: list[float] = []

    def act(stall: float) -> str:
        waits.append(stall)
        if len(waits) <= len(errors):
            raise OperationalError from errors[len(waits) - 1]
        return "done"

    return act, waits


def test_it_is_tried_again_for_as_long_as_each_try_says():
    act, waits = failing(psycopg.errors.LockNotAvailable(), psycopg.errors.DeadlockDetected())

    done = locks.briefly(act, iter([(0.1, 0), (0.2, 0), (0.4, 0)]), "orders", 60)

    assert (done, waits) == ("done", [0.1, 0.2, 0.4])


def test_it_is_given_up_once_the_next_try_would_come_too_late():
    act, waits = failing(*repeat(psycopg.errors.LockNotAvailable(), 9))

    with pytest.raises(QueueBusy, match="'orders' could not be locked within 60 seconds"):
        locks.briefly(act, iter([(0.1, 0), (0.2, 61)]), "orders", 60)

    assert waits == [0.1, 0.2]


def test_any_other_error_ends_it():
    act, waits = failing(psycopg.errors.QueryCanceled())

    with pytest.raises(OperationalError):
        locks.briefly(act, repeat((0.1, 0)), "orders", 60)

    assert waits == [0.1]


def test_an_error_that_is_said_to_be_a_kept_lock_does_not():
    act, waits = failing(psycopg.errors.QueryCanceled())

    assert locks.briefly(act, repeat((0.1, 0)), "orders", 60, kept=["57014"]) == "done"

    assert len(waits) == 2


def test_settings_hold_for_the_block_and_not_for_the_rest_of_the_transaction(db):
    shown = "SELECT current_setting('lock_timeout'), current_setting('enable_seqscan')"
    before = run_sql(shown)

    with transaction.atomic(), connection.cursor() as cursor:
        with locks.settings_for(cursor, lock_timeout="70ms", enable_seqscan="off"):
            assert run_sql(shown) == [("70ms", "off")]

        assert run_sql(shown) == before
