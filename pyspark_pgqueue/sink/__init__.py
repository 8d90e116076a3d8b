"""Writes rows into queues."""
