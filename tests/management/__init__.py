"""Mirrors the package: the commands."""

from __future__ import annotations
