"""Tests of the models and managers; see docs/testing.md."""

from __future__ import annotations
