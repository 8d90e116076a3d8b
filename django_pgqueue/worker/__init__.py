"""The worker: a message is fetched, buffered, run and settled.

fetch   :mod:`.fetcher`  leases messages, woken by the :mod:`.listener`
buffer  :mod:`.buffer`   holds them until a handler starts; :mod:`.groups` keeps groups in order
run     :mod:`.workers`  run handlers in threads or on an event loop: :mod:`.execution`
settle  :mod:`.settler`  writes outcomes in batches; :mod:`.endings` counts and announces them
signal  :mod:`.announcer` calls the receivers of the loops' signals, so that no loop waits for them

A :mod:`.subscription` is one handler and its queue, with its buffer, its runs and its counts.
:mod:`.leases` extends the leases of held messages, :mod:`.presence` writes the heartbeat, and
:mod:`.maintenance` maintains the queues. :mod:`.consumer` starts and stops the loops of one
process, :mod:`.supervisor` runs several processes. Everything about connections is in
:mod:`.connections`.
"""

from __future__ import annotations

from django_pgqueue.worker.consumer import Consumer
from django_pgqueue.worker.options import Options

__all__ = ["Consumer", "Options"]
