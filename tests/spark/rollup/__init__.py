"""Tests of the roll-up."""
