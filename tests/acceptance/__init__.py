"""Acceptance tests with real processes and servers; see docs/testing.md."""

from __future__ import annotations
