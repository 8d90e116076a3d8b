"""Tests of consumers, in a thread of the test or in processes."""

from __future__ import annotations
