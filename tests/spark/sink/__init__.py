"""Tests of writes."""
