"""The rows of an action: fixed when it is asked for, and never more than was confirmed."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import SuspiciousOperation
from django.db.models import QuerySet

from django_pgqueue.admin import pages
from django_pgqueue.models import Queue

__all__ = ["Selection", "counted", "listed"]


@dataclass
class Selection:
    """Ids of messages by their queue's id; it travels through the question as JSON."""

    ids: dict[int, list[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, queryset: QuerySet[Any]) -> Selection:
        """The messages as they are now, no more of them than a list counts."""
        ids: dict[int, list[int]] = defaultdict(list)
        rows = queryset.order_by("-pk").values_list("queue_id", "pk")
        for queue_id, pk in rows[: pages.CAP]:
            ids[queue_id].append(pk)
        return cls(dict(ids))

    @classmethod
    def from_text(cls, text: str) -> Selection:
        """The selection that was confirmed. Raises SuspiciousOperation for anything else."""
        try:
            ids = {
                int(queue_id): [int(pk) for pk in pks] for queue_id, pks in json.loads(text).items()
            }
        except (AttributeError, TypeError, ValueError) as error:
            raise SuspiciousOperation("not a selection of messages") from error
        numbers = [*ids, *(pk for pks in ids.values() for pk in pks)]
        if len(numbers) - len(ids) > pages.CAP or any(abs(n) >= 2**63 for n in numbers):
            raise SuspiciousOperation("not a selection of messages")
        return cls(ids)

    def as_text(self) -> str:
        return json.dumps(self.ids, separators=(",", ":"))

    def as_fields(self, action: str) -> dict[str, str]:
        """The fields with which the confirmation page calls the action again."""
        return {
            "action": action,
            ACTION_CHECKBOX_NAME: str(self.highest),
            "select_across": "1",
            "selection": self.as_text(),
        }

    def by_queue(self, queues: QuerySet[Queue]) -> Iterator[tuple[Queue, list[int]]]:
        """Each of these queues with its ids."""
        for queue in queues.filter(pk__in=[pk for pk in self.ids if abs(pk) < 2**31]):
            yield queue, self.ids[queue.pk]

    def __len__(self) -> int:
        return sum(len(pks) for pks in self.ids.values())

    @property
    def highest(self) -> int:
        return max((pk for pks in self.ids.values() for pk in pks), default=0)


def counted(ids: Sequence[object]) -> str:
    """
    >>> counted([7]), counted(range(1200))
    ('1 message', '1,200 messages')
    """
    return f"{len(ids):,} message{'' if len(ids) == 1 else 's'}"


def listed(ids: Sequence[int]) -> str:
    """
    >>> listed([7, 8])
    '7, 8'
    """
    return ", ".join(map(str, ids[:20])) + (", …" if len(ids) > 20 else "")
