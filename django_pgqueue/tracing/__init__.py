"""Traces for OpenTelemetry: put ``django_pgqueue.tracing`` in INSTALLED_APPS.

One trace goes from the code that sends through the queue to the handler, by the W3C headers of
the message. Needs opentelemetry-api (``pip install django-postgres-mq[opentelemetry]``); what
becomes of the spans is for the project's SDK to say.
"""

from __future__ import annotations
