"""Kills a primary under load, promotes a standby, and counts messages before and after."""

from __future__ import annotations
