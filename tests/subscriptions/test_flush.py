"""What a test suite's flush leaves of subscriptions."""

from __future__ import annotations

import pytest
from django.core.management import call_command
from django.db import connection

from django_pgqueue.models import queue


@pytest.mark.django_db(transaction=True)
def test_a_flush_removes_positions():
    queue("orders").create()
    queue("audit").subscribe(to="orders")

    call_command("flush", interactive=False, verbosity=0)

    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pgqueue_cursor")
        assert cursor.fetchone() == (0,)
