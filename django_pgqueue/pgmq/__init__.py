"""The schema ``pgmq``: PGMQ's SQL functions on our tables, for clients in any language."""

from __future__ import annotations

from django_pgqueue.pgmq.installing import dropped, install, installed, remove

__all__ = ["dropped", "install", "installed", "remove"]
