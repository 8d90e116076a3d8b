"""Tests of the tables, functions and triggers."""

from __future__ import annotations
