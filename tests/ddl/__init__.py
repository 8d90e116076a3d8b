"""The tables of queues."""

from __future__ import annotations
