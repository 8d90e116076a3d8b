"""For type checkers: the names that __init__.py imports at first use, to avoid circular imports."""

from django_pgqueue.flows.waits import asignal as asignal
from django_pgqueue.flows.waits import signal as signal
from django_pgqueue.handlers import consumer as consumer
from django_pgqueue.queues.bound import queue as queue
from django_pgqueue.schedules import schedule as schedule
from django_pgqueue.types import Receipt as Receipt
from django_pgqueue.types import State as State

__all__ = ["Receipt", "State", "asignal", "consumer", "queue", "schedule", "signal"]

__version__: str
