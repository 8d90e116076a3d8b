"""A Django database backend that brings its own PostgreSQL (see base.py and server.py)."""

from __future__ import annotations
