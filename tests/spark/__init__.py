"""Tests of the Spark pipeline. All share one Spark session, whose start takes most of a minute."""

from __future__ import annotations
