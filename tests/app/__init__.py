"""A Django app of the tests: what a project that uses the queue would have."""

from __future__ import annotations
