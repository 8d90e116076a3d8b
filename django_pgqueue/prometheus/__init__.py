"""Metrics for Prometheus: put ``django_pgqueue.prometheus`` in INSTALLED_APPS.

A consumer's health port then serves the process's counters as ``/metrics``. The view
:func:`django_pgqueue.prometheus.views.metrics` serves the counts of the queues. Needs
prometheus-client (``pip install django-postgres-mq[prometheus]``).
"""

from __future__ import annotations
