"""Rounds of maintenance, conversion to partitions, and the tables of a queue.

===================  =============================================================================
round.py             the steps of a round, each in the file of its name; ``maintain``
work.py              the limits and counts of a round on one queue; runs its statements
lakes.py             which archived messages lakes still need  (``lakes.sql``, ``purge_mark.sql``)
lease.py             which process runs maintenance            (``hold.sql``)
conversion.py        ``repartition``: partitions a queue, or changes the interval, in use
bounds.py            the CHECK constraints of a conversion
partitions.py        partitions by time: made, found, locked, dropped
tables.py            a queue's own tables: made with it, dropped with it
stored_queue.py      a queue as these modules need it: they import no model
===================  =============================================================================
"""

from __future__ import annotations

from django_pgqueue.maintenance.conversion import repartition
from django_pgqueue.maintenance.round import keep_history, maintain, maintain_or_tell

__all__ = ["keep_history", "maintain", "maintain_or_tell", "repartition"]
