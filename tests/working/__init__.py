"""A project whose handlers follow their messages: succeed, raise, hang, or kill."""

from __future__ import annotations
