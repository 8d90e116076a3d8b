"""The pipeline: queues as a source and a sink of Spark, and the jobs that keep a lake.

Nothing here knows Django: what runs on a cluster needs this package, ``pip install
"django-postgres-mq[spark]"`` and the address of the database.

==================  ===========================================================================
offsets, filters    decide, in plain Python: what lies between two moments, as SQL
options, columns    what a reader is asked for
planning            asks the database how to cut a read into tasks
arrow               carries rows, as Arrow batches through ADBC
source, stream      the data source ``pgqueue``: batch and streaming reads
sink                batch and streaming writes, each row once
lake                files of a lake: where they lie, and how they get there at once
export, rollup,     the jobs
replay, verify
session, java       a local session with what it needs; what to install where it cannot be
==================  ===========================================================================
"""

from __future__ import annotations
