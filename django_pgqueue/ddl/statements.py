"""The released DDL files, as migrations run them."""

from __future__ import annotations

from importlib.resources import files

__all__ = [
    "PIPELINE_V1",
    "PIPELINE_V1_REVERSE",
    "TABLES_V1",
    "TABLES_V1_REVERSE",
    "TRIGGER_V1",
    "TRIGGER_V1_REVERSE",
]


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


PIPELINE_V1 = _read("pipeline_v1.sql")
PIPELINE_V1_REVERSE = _read("pipeline_v1_reverse.sql")
TABLES_V1 = _read("tables_v1.sql")
TABLES_V1_REVERSE = _read("tables_v1_reverse.sql")
TRIGGER_V1 = _read("trigger_v1.sql")
TRIGGER_V1_REVERSE = """
DROP FUNCTION IF EXISTS pgqueue_message_inserted() CASCADE;
DROP FUNCTION IF EXISTS pgqueue_queues_truncated() CASCADE;
"""
