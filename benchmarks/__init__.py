"""Measure the queue beside its peers: ``python -m benchmarks --help``."""
