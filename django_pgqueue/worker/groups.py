"""FIFO groups whose messages this process has leased: one message of a group runs at a time.

The fetch loop also leases the followers of a head, so that they need no read of their own.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

from django_pgqueue.models import Message


class Groups:
    """The leased messages of each group: a head, which may run, and its followers. Thread-safe."""

    def __init__(self) -> None:
        self._groups: dict[str, deque[Message]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """The number of followers."""
        with self._lock:
            return sum(len(group) - 1 for group in self._groups.values())

    def add(self, heads: Iterable[Message], followers: Iterable[Message]) -> list[Message]:
        """Add newly leased messages. Returns the older followers of their groups, which are lost.

        A read returns a new head only after the lease of the old head has ended, and with it the
        leases of the old followers.
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
        """Remove the message, if it is a head. Returns the new head of its group."""
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
        """Remove and return followers: in each group the first for which ``when`` is true, and all
        behind it."""
        taken: list[Message] = []
        with self._lock:
            for group in self._groups.values():
                followers = enumerate(list(group)[1:], 1)
                first = next((at for at, message in followers if when(message)), len(group))
                while len(group) > first:
                    taken.append(group.pop())
        return taken

    def _headed_by(self, message: Message) -> deque[Message]:
        """The group whose head this message is, or an empty one."""
        group = self._groups.get(message.group_key or "")
        return group if group and group[0] is message else deque()
