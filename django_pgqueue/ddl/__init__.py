"""The database objects behind the models: the only place that composes identifiers."""

from __future__ import annotations

from django_pgqueue.ddl.dropping import drop_queue
from django_pgqueue.ddl.partitions import (
    AHEAD,
    Leaf,
    create_leaves,
    create_slice,
    drop_slice,
    leaves,
    lock_slice_alone,
    lock_slices,
    missing_slices,
    moment,
    own_table,
    server_time,
    shared_names,
    table_names,
    time_slices,
)

__all__ = [
    "AHEAD",
    "Leaf",
    "create_leaves",
    "create_slice",
    "drop_queue",
    "drop_slice",
    "leaves",
    "lock_slice_alone",
    "lock_slices",
    "missing_slices",
    "moment",
    "own_table",
    "server_time",
    "shared_names",
    "table_names",
    "time_slices",
]
