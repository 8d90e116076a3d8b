"""Tests of the jobs that use a lake."""
