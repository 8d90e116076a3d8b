"""Traces for OpenTelemetry: put ``django_pgqueue.tracing`` in INSTALLED_APPS.

One trace covers the sending code, the queue and the handler: the message carries W3C trace headers.
Needs opentelemetry-api (``pip install django-postgres-mq[opentelemetry]``). The project's SDK
decides where spans are exported.
"""

from __future__ import annotations
