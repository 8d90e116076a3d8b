"""Tests of streams that consume a queue."""
