"""Constraints that are checked at the commit: Django's foreign keys, for example."""

from __future__ import annotations

import pytest
from django.db import connection

from django_pgqueue.models import ArchivedMessage, Message
from django_pgqueue.retries import NoRetry
from tests.conftest import run_sql

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def numbers():
    """A table whose unique constraint is checked at the commit."""
    run_sql("CREATE TABLE numbers (number integer UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    yield
    run_sql("DROP TABLE numbers")


@pytest.mark.parametrize("mode", [{"locked": True}, {"ack_policy": "TRANSACTIONAL"}])
def test_a_violation_at_the_commit_is_a_failed_attempt(committed_orders, drain, numbers, mode):
    committed_orders.send_batch([1, 1, 2])

    def work(message: Message) -> None:
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO numbers VALUES (%s)", [message.body])

    drain(work, retry=NoRetry(), **mode)

    assert sorted(run_sql("SELECT * FROM numbers")) == [(1,), (2,)]
    # Which of the two messages fails depends on the workers, which run at the same time.
    states = ArchivedMessage.objects.values_list("state", flat=True)
    assert sorted(states) == ["COMPLETED", "COMPLETED", "FAILED"]
    assert "numbers_number_key" in ArchivedMessage.objects.get(state="FAILED").error
