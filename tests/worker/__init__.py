"""Consumers at work, in a thread of the test or as processes of their own."""

from __future__ import annotations
