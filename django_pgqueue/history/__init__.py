"""The history of queues: the table ``pgqueue_history``, by the minute and by the hour.

=============  ====================================================================
note.py        consumers note what they did                      (``note.sql``)
sample.py      maintenance notes what each queue holds           (``sample.sql``)
fold.py        minutes and hours become one row                  (``fold.sql``)
forget.py      old rows go                                       (``forget.sql``)
recent.py      the last hour, for the admin   (``recent.sql``, ``times.sql``)
histograms.py  times in buckets, and percentiles of them
lock.py        one process at a time samples, folds and forgets
=============  ====================================================================
"""
