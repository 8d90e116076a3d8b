"""The protocol as TLA+: its states are all visited by TLC, and planted bugs must be found."""

from __future__ import annotations
