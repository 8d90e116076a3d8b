"""A test behind each promise that the pages print, most of them at full speed."""

from __future__ import annotations
