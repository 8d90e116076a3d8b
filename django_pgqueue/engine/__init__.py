"""The queue itself: SQL, and the decisions around it. Imports no Django.

Each folder is one behaviour, its Python beside its .sql:

========  ==============================================================================
send      put messages into a queue
read      lease messages, by groups too, look at them, take them for good
settle    write the outcome of a message: archive, delete, retry, fail, a new timeout
leases    batch leases: one row for messages that one read leased together
groups    FIFO groups: which message is at the head of each
redrive   dead letters and archived messages, back to work
metrics   how much a queue holds
========  ==============================================================================

``places.sql`` defines where a message stands, and ``errors.sql`` which errors are alike. Other
statements include their parts.

An operation is a function whose first argument is an open queue
(:class:`django_pgqueue.engine.queue.OpenQueue`): it runs one statement, or a few, and returns
rows by name (:mod:`django_pgqueue.engine.rows`). The queue's *runner* says how a statement runs,
and what a transaction is (:mod:`django_pgqueue.engine.runner`).
:class:`django_pgqueue.models.BoundQueue` has a method for each; ``Message.objects`` and the async
twins are made of its methods.

Rules for the SQL, each from a plan that went wrong; statements cite them by number:

P1  A value that decides how much is read is written as a scalar subquery: ``LIMIT (SELECT
    %(qty)s)``. A planner that sees the value plans anew for each, or sorts everything for the first
    few rows.
P2  Rows are changed by ``ctid = ANY(ARRAY(SELECT ctid …))``: a join could be planned as a hash over
    the whole table.
P3  ``queue_id + 0``, where the id is known, leaves the planner only the index led by id: the one
    led by queue_id would read all of the queue.
P4  A list of values is hidden in ``ARRAY(SELECT unnest(…))``, or the planner plans for its length.
P5  ``LATERAL (… OFFSET 0)`` looks rows up one by one, by the index: for a join the planner reads
    all of a partition that has no statistics yet.
P6  Existence is asked for in the order of an index with ``LIMIT 1``: EXISTS may be planned as a
    scan that hopes to find a row early.
P7  ``(… IN (SELECT …)) IS TRUE`` is a look-up in a hash, and never a join.
"""

from __future__ import annotations
