"""The pipeline. One Spark session serves all of these tests; most of a minute is its start."""

from __future__ import annotations
