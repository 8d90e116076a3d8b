"""The cost of a statement: explained with ANALYZE, and rolled back.

with watched(connection) as plans:
    queue("orders").read(qty=10, in_transaction=True)
for plan in plans:
    plan.check(rows=100, buffers=500)
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

__all__ = ["Node", "Plan", "TooMuch", "planned_queues", "watched"]

OURS = (
    "pgqueue_ready",
    "pgqueue_deferred",
    "pgqueue_lease",
    "pgqueue_waiting",
    "pgqueue_group",
    "pgqueue_recheck",
    "pgqueue_claim",
    "pgqueue_binding",
    "pgqueue_fall_asleep",
    "pgqueue_message",
    "pgqueue_archive",
    "pgqueue_step",
    "pgqueue_note",
    "pgqueue_batch",
)

PARTITION = re.compile(r"pgqueue_(?:message|archive)_q(\d+)")
EXPLAINED = ("SELECT", "WITH", "INSERT", "UPDATE", "DELETE", "--")

# Up to this size the server rightly reads a whole table instead of an index, in buffers.
TINY = 128


class TooMuch(AssertionError):
    """A plan reads more rows or buffers than allowed."""


@dataclass(frozen=True)
class Node:
    """A node of a plan, with the rows and buffers of all its loops."""

    kind: str
    relation: str
    rows: float
    buffers: int
    own: float  # buffers of all loops, without the nodes below
    depth: int

    def __str__(self) -> str:
        return (
            f"{'  ' * self.depth}{self.kind} {self.relation}: "
            f"{self.rows:g} rows, {self.buffers} buffers"
        )


@dataclass(frozen=True)
class Plan:
    statement: str
    nodes: list[Node]
    cost: float  # as the planner estimates it

    @property
    def buffers(self) -> int:
        return self.nodes[0].buffers  # a node's count includes its children's

    @property
    def rows(self) -> float:
        """The largest number of rows in a node."""
        return max(node.rows for node in self.nodes)

    @property
    def scanned(self) -> list[Node]:
        """The nodes that scan a whole table of ours, except tiny tables."""
        return [
            node
            for node in self.nodes
            if node.kind == "Seq Scan" and node.relation.startswith(OURS) and node.own > TINY
        ]

    def check(self, *, rows: float, buffers: int, cost: float = math.inf) -> None:
        """Raise TooMuch with the whole plan if a limit is exceeded."""
        complaints = [f"reads all of {node.relation}" for node in self.scanned]
        if self.rows > rows:
            complaints.append(f"a step touches {self.rows:g} rows, more than {rows:g}")
        if self.buffers > buffers:
            complaints.append(f"touches {self.buffers} buffers, more than {buffers}")
        if self.cost > cost:
            complaints.append(f"seems to cost {self.cost:g}, more than {cost:g}")
        if complaints:
            tree = "\n".join(map(str, self.nodes))
            raise TooMuch(f"{'; '.join(complaints)}:\n{tree}\n\n{self.statement}")


@contextmanager
def watched(connection: Any, *, generic: bool = False) -> Iterator[list[Plan]]:
    """Collect the plan of each statement on our tables that runs in the block.

    Each statement is measured and rolled back. With ``generic`` it is measured a second time, with
    the generic plan of a prepared statement.
    """
    plans: list[Plan] = []

    def explain(execute: Any, statement: str, params: Any, many: bool, context: Any) -> Any:
        if any(table in statement for table in OURS):
            cursor = context["cursor"]

            def run(text: str, values: Any = None) -> Any:
                return execute(text, values, False, context)

            def measure(text: str, values: Any) -> None:
                run("SAVEPOINT measured")
                run("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + text, values)
                (found,) = cursor.fetchone()
                top = _parsed(found)[0]["Plan"]
                plans.append(Plan(statement, list(_walk(top, 0)), top["Total Cost"]))
                run("ROLLBACK TO SAVEPOINT measured")

            measure(statement, params)
            if generic and isinstance(params, dict):
                prepared, call = _prepared(statement)
                run("SET plan_cache_mode = force_generic_plan")
                run(f"PREPARE measured AS {prepared}")
                measure(f"EXECUTE measured {call}", params)
                run("DEALLOCATE measured")
                run("RESET plan_cache_mode")
        return execute(statement, params, many, context)

    with connection.execute_wrapper(explain):
        yield plans
    assert plans, "nothing was watched"


@contextmanager
def planned_queues(connection: Any) -> Iterator[set[int]]:
    """Collect the ids of the queues whose own tables occur in a statement's plan."""
    found: set[int] = set()

    def explain(execute: Any, statement: str, params: Any, many: bool, context: Any) -> Any:
        if statement.lstrip().startswith(EXPLAINED):
            execute(f"EXPLAIN {statement}", params, False, context)
            for (line,) in context["cursor"].fetchall():
                found.update(map(int, PARTITION.findall(line)))
        return execute(statement, params, many, context)

    with connection.execute_wrapper(explain):
        yield found


def _prepared(statement: str) -> tuple[str, str]:
    """Convert a statement to the text for PREPARE and the values for EXECUTE."""
    names: dict[str, int] = {}

    def placed(match: re.Match[str]) -> str:
        return f"${names.setdefault(match[1], len(names) + 1)}" if match[1] else "%"

    text = re.sub(r"%\((\w+)\)s|%%", placed, statement)
    return text, f"({', '.join(f'%({name})s' for name in names)})" if names else ""


def _parsed(plan: Any) -> Any:
    return json.loads(plan) if isinstance(plan, str) else plan


def _buffers(node: dict[str, Any]) -> int:
    return int(node["Shared Hit Blocks"] + node["Shared Read Blocks"])


def _walk(node: dict[str, Any], depth: int, elsewhere: int = 0) -> Iterator[Node]:
    loops, below = node["Actual Loops"], node.get("Plans", ())
    # EXPLAIN shows rows as means over the loops, and buffers as sums.
    touched = node["Actual Rows"] + sum(
        node.get(f"Rows Removed by {what}", 0)
        for what in ("Filter", "Join Filter", "Index Recheck")
    )
    yield Node(
        kind=node["Node Type"],
        relation=node.get("Relation Name", node.get("Subplan Name", "")),
        rows=touched * loops,
        buffers=_buffers(node),
        own=(_buffers(node) - sum(map(_buffers, below)) - elsewhere) / max(loops, 1),
        depth=depth,
    )
    # An InitPlan is shown next to the node that uses it, and its buffers are counted in that node.
    shown = [child for child in below if child["Parent Relationship"] == "InitPlan"]
    for child in below:
        asked = 0 if child in shown else sum(map(_buffers, shown))
        yield from _walk(child, depth + 1, asked)
