"""Faults of every kind while messages flow, and a checker of what came of it."""

from __future__ import annotations
