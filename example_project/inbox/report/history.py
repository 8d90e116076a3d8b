"""Queries the lake: webhooks by event and repository."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark_pgqueue.lake.reading import read as read_lake

__all__ = ["History", "ask"]

MOST = 15


@dataclass(frozen=True)
class History:
    """The results: small tables, each a list of rows as dicts."""

    total: int
    failed: int
    events: list[dict[str, Any]]
    repositories: list[dict[str, Any]]


def ask(spark: Any, path: str) -> History:
    """Query a lake of the inbox's archive."""
    deliveries = (
        read_lake(spark, path)
        .where("queue = 'github'")
        .selectExpr(
            "state",
            "get_json_object(headers, '$.event') AS event",
            "get_json_object(body, '$.action') AS action",
            "get_json_object(body, '$.repository.full_name') AS repository",
        )
        .cache()
    )
    deliveries.createOrReplaceTempView("deliveries")

    def rows(sql: str) -> list[dict[str, Any]]:
        return [row.asDict() for row in spark.sql(sql).collect()]

    (totals,) = rows(
        "SELECT count(*) AS total, count_if(state = 'FAILED') AS failed FROM deliveries"
    )
    try:
        return History(
            **totals,
            events=rows(
                "SELECT event, count(*) AS deliveries, count(DISTINCT action) AS actions "
                f"FROM deliveries GROUP BY event ORDER BY deliveries DESC, event LIMIT {MOST}"
            ),
            repositories=rows(
                "SELECT repository, count(*) AS deliveries, count(DISTINCT event) AS events "
                "FROM deliveries WHERE repository IS NOT NULL GROUP BY repository "
                f"ORDER BY deliveries DESC, repository LIMIT {MOST}"
            ),
        )
    finally:
        deliveries.unpersist()
