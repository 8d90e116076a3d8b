"""Measure the queue and its peers: ``python -m benchmarks --help``."""
