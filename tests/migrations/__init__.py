"""Mirrors the package; see docs/testing.md."""

from __future__ import annotations
