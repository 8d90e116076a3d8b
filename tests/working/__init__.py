"""A project whose handlers do what the message says: end well, raise, hang, or kill."""

from __future__ import annotations
