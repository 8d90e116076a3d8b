"""The FIFO groups of which this process has leased messages: one of each group runs at a time.

A read that leases a head leases its followers too. The ack of one message promotes the next, which
then needs no read of its own.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

from django_pgqueue.models import Message


class Groups:
    """For each group its head, which may run, and its followers. The loops share it."""

    def __init__(self) -> None:
        self._groups: dict[str, deque[Message]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """The number of followers."""
        with self._lock:
            return sum(len(group) - 1 for group in self._groups.values())

    def add(self, heads: Iterable[Message], followers: Iterable[Message]) -> list[Message]:
        """Add newly leased messages; returns older followers of the same groups.

        Their leases are lost: a read finds a new head only after the old one's lease ended.
        """
        lost: list[Message] = []
        with self._lock:
            for head in heads:
                if head.group_key is not None:
                    lost += list(self._groups.pop(head.group_key, ()))[1:]
                    self._groups[head.group_key] = deque([head])
            for follower in followers:
                self._groups[follower.group_key or ""].append(follower)
        return lost

    def promote(self, message: Message) -> Message | None:
        """Remove the head, if it is this message; returns the new head."""
        with self._lock:
            group = self._headed_by(message)
            if not group:
                return None
            group.popleft()
            if group:
                return group[0]
            del self._groups[message.group_key or ""]
            return None

    def take_followers(self, message: Message) -> list[Message]:
        """Remove and return the followers of a message, if it is a head."""
        with self._lock:
            group = self._headed_by(message)
            return [group.pop() for _ in range(len(group) - 1)][::-1]

    def take(self, when: Callable[[Message], bool] = lambda message: True) -> list[Message]:
        """Remove and return each group's first follower for which ``when`` holds, and all behind
        it."""
        taken: list[Message] = []
        with self._lock:
            for group in self._groups.values():
                followers = enumerate(list(group)[1:], 1)
                first = next((at for at, message in followers if when(message)), len(group))
                while len(group) > first:
                    taken.append(group.pop())
        return taken

    def _headed_by(self, message: Message) -> deque[Message]:
        """The group of which this message is the head; else an empty one."""
        group = self._groups.get(message.group_key or "")
        return group if group and group[0] is message else deque()
