"""The history of queues in the table ``pgqueue_history``, with rows per minute and per hour.

=============  ============================================================================
note.py        consumers write their counts of each minute          (``note.sql``)
keep.py        maintenance writes each queue's backlog and sends    (``sample.sql``),
               merges the rows of a minute or an hour into one row  (``fold.sql``),
               and deletes old rows                                 (``forget.sql``)
counters.py    names the columns of counts
recent.py      reads the last hour, for the admin                   (``recent.sql``, ``times.sql``)
onset.py       finds when a queue's attempts began to fail          (``onset.sql``)
histograms.py  counts times in buckets, and computes percentiles
=============  ============================================================================
"""
