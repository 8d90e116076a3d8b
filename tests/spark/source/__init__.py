"""Tests of reads of the archive, live messages and counts."""
