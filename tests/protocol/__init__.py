"""The protocol in TLA+: TLC visits all states, and must find planted bugs."""

from __future__ import annotations
