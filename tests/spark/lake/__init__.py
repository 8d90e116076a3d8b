"""Tests of a lake's files, stores and Iceberg table."""
