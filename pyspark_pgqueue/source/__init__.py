"""Reads the archive, live messages and counts: in batches, or the archive as a stream."""
