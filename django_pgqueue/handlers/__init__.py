"""The @consumer decorator, its registry, and typed bodies."""

from __future__ import annotations

from django_pgqueue.handlers.registry import (
    DEFAULT_RETRY,
    Handler,
    autodiscover,
    consumer,
    discover_with,
    handler_of,
    handlers,
    register,
)

__all__ = [
    "DEFAULT_RETRY",
    "Handler",
    "autodiscover",
    "consumer",
    "discover_with",
    "handler_of",
    "handlers",
    "register",
]
