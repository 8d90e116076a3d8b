"""Real webhooks of GitHub, where there are some."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

__all__ = ["REAL_PAYLOADS", "needs_real_payloads"]

REAL_PAYLOADS = Path(
    os.environ.get("PGQUEUE_WEBHOOKS")
    or Path(__file__).resolve().parents[2]
    / "shared"
    / "data"
    / "github_webhooks"
    / "payloads.jsonl.gz"
)
needs_real_payloads = pytest.mark.skipif(
    not REAL_PAYLOADS.exists(),
    reason="no real payloads here: name a file of them in PGQUEUE_WEBHOOKS",
)
