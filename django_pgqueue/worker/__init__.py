"""The worker: four loops around the handlers.

fetch      :mod:`.fetcher`  leases messages into each subscription's bounded buffer
work       :mod:`.workers`  runs handlers, in threads or on an event loop
settle     :mod:`.settler`  writes outcomes together
leases     :mod:`.leases`   extends what runs, gives back what waits too long, ends what is overdue

Messages of one FIFO group are in one of the :mod:`.lines`, and start one after another.
:mod:`.consumer` puts them together for one process, :mod:`.supervisor` runs several. One run of a
handler is a :class:`.running.Running`; everything about connections is in :mod:`.connections`.
"""

from __future__ import annotations

from django_pgqueue.worker.consumer import Consumer
from django_pgqueue.worker.options import Options

__all__ = ["Consumer", "Options"]
