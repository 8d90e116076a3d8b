"""Receivers of the signals, which log events."""

from __future__ import annotations
