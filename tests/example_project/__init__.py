"""Tests of the example project, as its users see it."""
