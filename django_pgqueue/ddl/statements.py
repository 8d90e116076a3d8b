"""The released DDL files, as migrations run them."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from django.db.migrations import RunSQL

__all__ = [
    "BODIES_V1",
    "BODIES_V1_REVERSE",
    "CLAIM_KEYS",
    "CLAIM_KEYS_REVERSE",
    "GROUPS_V1",
    "GROUPS_V1_REVERSE",
    "PIPELINE_V1",
    "PIPELINE_V1_REVERSE",
    "TABLES_V1",
    "TABLES_V1_REVERSE",
    "TRIGGER_V1",
    "TRIGGER_V1_REVERSE",
    "RunPostgreSQL",
]


class RunPostgreSQL(RunSQL):
    """RunSQL that leaves the databases of other vendors alone, as models with
    ``required_db_vendor`` do."""

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        if schema_editor.connection.vendor == "postgresql":
            super().database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        if schema_editor.connection.vendor == "postgresql":
            super().database_backwards(app_label, schema_editor, from_state, to_state)


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


CLAIM_KEYS = _read("claim_keys.sql")
CLAIM_KEYS_REVERSE = (
    "DROP FUNCTION IF EXISTS pgqueue_claim_keys(regclass, integer, text[], interval)"
)
PIPELINE_V1 = _read("pipeline_v1.sql")
PIPELINE_V1_REVERSE = _read("pipeline_v1_reverse.sql")
TABLES_V1 = _read("tables_v1.sql")
TABLES_V1_REVERSE = _read("tables_v1_reverse.sql")
TRIGGER_V1 = _read("trigger_v1.sql")
TRIGGER_V1_REVERSE = """
DROP FUNCTION IF EXISTS pgqueue_message_inserted() CASCADE;
DROP FUNCTION IF EXISTS pgqueue_queues_truncated() CASCADE;
"""

BODIES_V1 = _read("bodies_v1.sql")
BODIES_V1_REVERSE = (
    "DROP FUNCTION IF EXISTS pgqueue_bodies(integer, bigint[], timestamptz, timestamptz)"
)

# Once for each set of the hot tables.
GROUPS_V1 = "".join(_read("groups_v1.sql").replace("{twin}", twin) for twin in ("", "_unlogged"))
GROUPS_V1_REVERSE = """
DROP FUNCTION IF EXISTS pgqueue_members_gone() CASCADE;
DROP FUNCTION IF EXISTS pgqueue_members_gone_unlogged() CASCADE;
DROP FUNCTION IF EXISTS pgqueue_go_on(boolean, bigint[], integer[], text[]);
DROP FUNCTION IF EXISTS pgqueue_go_on_unlogged(boolean, bigint[], integer[], text[]);
DROP FUNCTION IF EXISTS pgqueue_next_heads(tid[]);
DROP FUNCTION IF EXISTS pgqueue_next_heads_unlogged(tid[]);
"""
