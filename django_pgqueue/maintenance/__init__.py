"""Rounds of maintenance, conversion to partitions, and the tables of a queue.

===================  =============================================================================
round.py             ``maintain``: the order of a round's steps
work.py              one round on one queue: its limits, counts and statements
make_partitions.py   the step that makes partitions ahead
retention.py         the steps that remove messages
upkeep.py            the other steps: unique keys, slots of groups, failed attempts, steps
lakes.py             which archived messages lakes still need  (``lakes.sql``, ``purge_mark.sql``)
lease.py             which process runs maintenance            (``hold.sql``)
conversion.py        ``repartition``: partitions a queue in use, or changes its interval
bounds.py            the CHECK constraints of a conversion
partitions.py        makes, finds, locks and drops partitions by time
tables.py            makes and drops a queue's own tables
stored_queue.py      the protocol of a queue, since these modules import no model
===================  =============================================================================
"""

from __future__ import annotations

from django_pgqueue.maintenance.conversion import repartition
from django_pgqueue.maintenance.round import maintain, maintain_or_tell

__all__ = ["maintain", "maintain_or_tell", "repartition"]
