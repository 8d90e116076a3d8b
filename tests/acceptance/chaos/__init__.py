"""Injects faults of every kind while messages flow, and checks the outcome."""

from __future__ import annotations
