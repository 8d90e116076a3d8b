"""Tests of steps and notes."""
