"""The @consumer decorator, and the registry of handlers."""

from __future__ import annotations

from django_pgqueue.handlers.declared import (
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
