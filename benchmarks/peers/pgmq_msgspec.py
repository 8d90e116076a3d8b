"""PGMQ with psycopg set to decode bodies with msgspec, as its users could."""

from __future__ import annotations

import msgspec
from psycopg.types.json import set_json_loads

from benchmarks.peers import pgmq


class Queues(pgmq.Queues):
    def __init__(self) -> None:
        super().__init__()
        set_json_loads(msgspec.json.Decoder().decode, self.connection)
        self.cursor = self.connection.cursor()
