"""Done to queues now and then: partitions, pruning, conversion, and the lease of it.

======================  ==========================================================================
retention.py            ``maintain``, ``maintain_all``: a round of one queue, of all
round.py                the limits and counts of a round; runs its statements
ahead.py                step 1: partitions are made before they are needed
dropping.py             step 2: partitions are dropped      (``outcomes.sql``, ``stragglers.sql``)
pruning.py              step 3: rows and dedup keys are deleted (``expire.sql``, ``sweep_keys.sql``)
lakes.py                how far readers of the archive are     (``lakes.sql``, ``purge_mark.sql``)
history.py              the history of all queues   (``sample.sql``, ``fold.sql``, ``forget.sql``)
lease.py                which process maintains                (``hold.sql``)
conversion.py           ``repartition``: a queue in use gets partitions, or other ones
bounds.py, rights.py    what a conversion does to tables
partitions.py           partitions by time: made, found, locked, dropped
tables.py               a queue's own tables: made and dropped with it
======================  ==========================================================================

Nothing here imports a model; the models offer these functions as operations.
"""

from __future__ import annotations

from django_pgqueue.maintenance.conversion import Progress, repartition
from django_pgqueue.maintenance.history import keep_history
from django_pgqueue.maintenance.retention import maintain, maintain_all

__all__ = ["Progress", "keep_history", "maintain", "maintain_all", "repartition"]
