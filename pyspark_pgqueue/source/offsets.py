"""Positions in the archive, and the rows between two positions.

Neither ids nor times follow the order of commits, so neither can mark a position. A snapshot can:
it records which transactions had committed. A row is new if a later snapshot shows it and an
earlier one does not, however late its transaction committed. No read waits for an open transaction.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Snapshot:
    """The set of committed transactions, in PostgreSQL's notation ``xmin:xmax:running``."""

    xmin: int
    xmax: int
    running: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), tuple(int(x) for x in running.split(",") if x))

    @classmethod
    def below(cls, xid: int) -> Snapshot:
        """A snapshot that shows every transaction below this one."""
        return cls(xid, xid)

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, self.running))}"

    def past(self, xid: int) -> Snapshot:
        """This snapshot, with every transaction below ``xid`` shown too.

        >>> print(Snapshot.parse("5:9:5,7").past(6), Snapshot.parse("5:9:5,7").past(20))
        7:9:7 20:20:
        """
        xmax, running = max(self.xmax, xid), tuple(each for each in self.running if each >= xid)
        return Snapshot(min(running, default=xmax), xmax, running)

    def settled_by(self, later: Snapshot) -> bool:
        """Whether every transaction running at this snapshot had ended at the later one."""
        return later.xmin >= self.xmax


EARLIEST = Snapshot.below(0)


@dataclass(frozen=True)
class Offset:
    """A stream's position: every row visible in ``since`` was delivered.

    If a step was cut short, rows of the next snapshot, ``until``, were delivered too, up to the
    transaction and id in ``after``. ``lake`` is the id of the lake with whose first row the stream
    began.
    """

    since: Snapshot
    until: Snapshot | None = None
    after: tuple[int, int] | None = None
    system: str = ""
    lake: int = 0

    @classmethod
    def parse(cls, value: dict[str, Any]) -> Offset:
        """Parse an offset from a checkpoint."""
        until, after = value.get("n"), value.get("a")
        return cls(
            Snapshot.parse(value["s"]),
            Snapshot.parse(until) if until else None,
            (int(after[0]), int(after[1])) if after else None,
            str(value.get("sys", "")),
            int(value.get("lake", 0)),
        )

    def as_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {"s": str(self.since)}
        if self.until is not None and self.after is not None:
            found |= {"n": str(self.until), "a": list(self.after)}
        if self.system:
            found["sys"] = self.system
        if self.lake:
            found["lake"] = self.lake
        return found

    def past(self, xid: int) -> Offset:
        """This position, with every row of transactions below ``xid`` delivered too."""
        after = self.after and max(self.after, (xid, 0))
        return replace(self, since=self.since.past(xid), after=after)

    def may_lack(self, purged_below: int) -> bool:
        """Whether rows of transactions below ``purged_below`` may be undelivered."""
        if self.after is not None:
            return purged_below > self.after[0]
        if self.since == EARLIEST:
            return False  # a stream from the start delivers what is left after purges
        return purged_below > self.since.xmax or any(x < purged_below for x in self.since.running)


def window(start: Offset, end: Offset) -> str:
    """A condition on the archive ``a``: the rows after one offset, up to another.

    The plain bounds are for the BRIN index, which cannot use the other conditions.

    >>> window(Offset(Snapshot.below(5)), Offset(Snapshot.parse("7:9:7")))
    "a.archive_xid >= 5 AND a.archive_xid < 9 AND a.archive_xid <> ALL ('{7}'::bigint[])"
    """
    old, new = start.since, end.until or end.since
    xid, place = "a.archive_xid", "(a.archive_xid, a.id)"
    terms = [f"{xid} >= {old.xmin}", f"{xid} < {new.xmax}"]
    if new.running:
        terms.append(f"{xid} <> ALL ({_array(new.running)})")
    if old.xmin != old.xmax:
        terms.append(f"({xid} >= {old.xmax} OR {xid} = ANY ({_array(old.running)}))")
    if start.after is not None:
        terms.append(f"{xid} >= {start.after[0]}")
        terms.append(f"{place} > ({start.after[0]}, {start.after[1]})")
    if end.after is not None:
        terms.append(f"{xid} <= {end.after[0]}")
        terms.append(f"{place} <= ({end.after[0]}, {end.after[1]})")
    return " AND ".join(terms)


def _array(xids: tuple[int, ...]) -> str:
    return "'{" + ",".join(map(str, xids)) + "}'::bigint[]"
