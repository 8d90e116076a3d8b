"""Done to queues now and then: rounds of maintenance, conversion, and the tables of a queue.

===================  =============================================================================
round.py             the steps of a round, each in the file of its name; ``maintain``
work.py              the limits and counts of a round on one queue; runs its statements
lakes.py             how far readers of the archive are       (``lakes.sql``, ``purge_mark.sql``)
lease.py             which process maintains                  (``hold.sql``)
conversion.py        ``repartition``: a queue in use gets partitions, or other ones
bounds.py rights.py  what a conversion does to tables
partitions.py        partitions by time: made, found, locked, dropped
tables.py            a queue's own tables: made and dropped with it
===================  =============================================================================

Nothing here imports a model; the models offer these functions as operations.
"""

from __future__ import annotations

from django_pgqueue.maintenance.conversion import repartition
from django_pgqueue.maintenance.round import keep_history, maintain, maintain_or_tell

__all__ = ["keep_history", "maintain", "maintain_or_tell", "repartition"]
