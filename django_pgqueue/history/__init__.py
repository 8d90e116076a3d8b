"""The history of queues in the table ``pgqueue_history``, with rows per minute and per hour.

=============  ==========================================================================
note.py        consumers write what they did in a minute              (``note.sql``)
sample.py      maintenance writes what each queue holds               (``sample.sql``)
fold.py        merges the rows of a minute or an hour into one row    (``fold.sql``)
forget.py      deletes old rows                                       (``forget.sql``)
recent.py      reads the last hour, for the admin     (``recent.sql``, ``times.sql``)
histograms.py  counts times in buckets, and computes percentiles
lock.py        lets one process at a time sample, fold and forget
=============  ==========================================================================
"""
