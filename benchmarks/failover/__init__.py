"""A primary that is killed under load, a standby that is promoted, and the counts of both."""

from __future__ import annotations
