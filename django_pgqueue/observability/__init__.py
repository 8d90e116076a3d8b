"""Listeners of the signals: what is logged, counted and traced."""

from __future__ import annotations
