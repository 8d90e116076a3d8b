"""Metrics for Prometheus: put ``django_pgqueue.prometheus`` in INSTALLED_APPS.

A consumer's health port then has ``/metrics`` with what the process does, and
:func:`django_pgqueue.prometheus.views.metrics` is a view of what the queues hold. Needs
prometheus-client (``pip install django-postgres-mq[prometheus]``).
"""

from __future__ import annotations
