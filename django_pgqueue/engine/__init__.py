"""The operations on queues, in SQL and Python, without Django.

Each folder has the Python and SQL files of one kind of operation:

=============  =========================================================================
send           put messages into a queue
read           lease messages, one by one or in groups; peek and pop
settle         write the outcome of a message: archive, delete, retry, fail, set its timeout
leases         batch leases: one row for messages that one read leased together
groups         FIFO groups: which message is at the head of each
subscriptions  queues that read another queue's messages: positions, reads, leases
redrive        send dead letters and archived messages again
metrics        message counts and ages
audit          entries of the audit log
=============  =========================================================================

Statements include parts of three files. ``places.sql`` defines the places in which messages are
counted and shown, ``reasons.sql`` the reasons why a message is not delivered now, and
``errors.sql`` the kinds of errors.

An operation is a function whose first argument is an open queue
(:class:`django_pgqueue.engine.open_queue.OpenQueue`). It runs one or a few statements and returns
named tuples (:mod:`django_pgqueue.engine.rows`). The queue's *runner* runs statements and
transactions (:mod:`django_pgqueue.engine.runner`). :class:`django_pgqueue.models.BoundQueue` has a
method for each operation; ``Message.objects`` and the async twins are built from its methods.

Rules for the SQL. Each prevents a slow plan that occurred; statements cite them by number:

P1  A limit is a scalar subquery: ``LIMIT (SELECT %(qty)s)``. If the planner sees the value, it
    makes a plan for each value, sorts all rows to return a few, or scans rows of other queues.
P2  Rows are changed by ``ctid = ANY(ARRAY(SELECT ctid …))``: a join may become a hash join
    over the whole table.
P3  ``queue_id + 0``, where the message's id is known, makes the planner use the index on id. With
    the index on queue_id it would scan the whole queue.
P4  A list is wrapped in ``ARRAY(SELECT unnest(…))``: its length must not change the plan.
P5  ``LATERAL (… OFFSET 0)`` looks up each row by the index. With a plain join, the planner scans
    partitions that have no statistics yet.
P6  Existence is tested with ``ORDER BY`` an index and ``LIMIT 1``: for EXISTS the planner may scan
    the table, because it expects to find a row early.
P7  ``(… IN (SELECT …)) IS TRUE`` is always a hash look-up, never a join.
"""

from __future__ import annotations
