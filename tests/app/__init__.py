"""The tests' Django app: what a project that uses the queue would have."""

from __future__ import annotations
