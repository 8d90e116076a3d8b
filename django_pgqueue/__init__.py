"""A PostgreSQL message queue that is a Django reusable app.

>>> from django_pgqueue import consumer, queue
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["Receipt", "State", "asignal", "consumer", "queue", "schedule", "signal"]

__version__ = "0.1.0"

# The modules of the public names, imported at first use: a project's models.py may import this
# package, but the package's models cannot be imported before the apps are loaded.
_HOMES = {
    "consumer": "django_pgqueue.handlers",
    "queue": "django_pgqueue.models",
    "schedule": "django_pgqueue.schedules",
    "signal": "django_pgqueue.flows.waits",
    "asignal": "django_pgqueue.flows.waits",
    "Receipt": "django_pgqueue.types",
    "State": "django_pgqueue.types",
}


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
