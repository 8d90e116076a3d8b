"""The consumer's runtime: four loops around the handlers, and what keeps them alive.

fetch      :mod:`.fetcher`  leases messages into each subscription's bounded buffer
work       :mod:`.workers`  runs handlers, in threads or on an event loop
settle     :mod:`.settler`  writes outcomes in batches
leases     :mod:`.leases`   extends what runs, gives back what waits too long, ends what hangs

:mod:`.consumer` puts them together for one process, :mod:`.supervisor` for several.
"""

from __future__ import annotations

from django_pgqueue.worker.consumer import Consumer
from django_pgqueue.worker.options import Options

__all__ = ["Consumer", "Options"]
