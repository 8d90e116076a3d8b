"""The database objects behind the models: the only place that composes identifiers."""

from __future__ import annotations

from django_pgqueue.ddl.partitions import (
    create_leaves,
    drop_leaves,
    shared_names,
    table_names,
    time_slices,
)

__all__ = ["create_leaves", "drop_leaves", "shared_names", "table_names", "time_slices"]
