"""Tests of the management commands."""

from __future__ import annotations
