"""PGMQ's functions and Django's methods work on the same queues."""

from __future__ import annotations

from django_pgqueue.models import Message


def test_a_client_sends_reads_and_archives(pgmq):
    pgmq("create('orders')")
    assert pgmq("send('orders', '{\"a\": 1}')") == [(1,)]
    [row] = pgmq("read('orders', 30, 1)")
    assert row[:2] == (1, 1)
    assert pgmq("archive('orders', 1)") == [(True,)]
    assert pgmq("read('orders', 30, 1)") == []
