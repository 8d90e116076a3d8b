"""Signal receivers that log events."""

from __future__ import annotations
