"""The test suite; its folders mirror the package."""

from __future__ import annotations
