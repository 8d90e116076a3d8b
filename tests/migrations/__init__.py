"""Tests of the migrations; see docs/testing.md."""

from __future__ import annotations
