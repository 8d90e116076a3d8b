"""Messages of FIFO groups that this process has leased together: one of each group runs at a time.

Without lines each message of a group takes a read of its own, after the one before it is settled.
With them a read is shared: the messages behind a head are leased with it, and the ack of one hands
on the next.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

from django_pgqueue.models import Message

__all__ = ["Lines"]


class Lines:
    """Of each group the message whose turn it is, from its lease until it is settled, and those
    behind it. The loops share it."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[Message]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """How many messages wait for their turn."""
        with self._lock:
            return sum(len(line) - 1 for line in self._lines.values())

    def begin(self, heads: Iterable[Message], followers: Iterable[Message]) -> list[Message]:
        """Open a line for each group; returns messages of lines that were still open.

        A head that a read brings proves that the turn of the one before it is over.
        """
        over: list[Message] = []
        with self._lock:
            for head in heads:
                if head.group_key is not None:
                    over += list(self._lines.pop(head.group_key, ()))[1:]
                    self._lines[head.group_key] = deque([head])
            for follower in followers:
                self._lines[follower.group_key or ""].append(follower)
        return over

    def end(self, message: Message) -> Message | None:
        """End a message's turn, if it is its turn; returns the one whose turn it is then."""
        with self._lock:
            line = self._led_by(message)
            if not line:
                return None
            line.popleft()
            if line:
                return line[0]
            del self._lines[message.group_key or ""]
            return None

    def behind(self, message: Message) -> list[Message]:
        """Take out the messages behind one, if it is its turn."""
        with self._lock:
            line = self._led_by(message)
            return [line.pop() for _ in range(len(line) - 1)][::-1]

    def leave(self, when: Callable[[Message], bool] = lambda message: True) -> list[Message]:
        """Take out of each line the first waiting message for which ``when`` holds, and all behind
        it."""
        left: list[Message] = []
        with self._lock:
            for line in self._lines.values():
                waiting = enumerate(list(line)[1:], 1)
                place = next((at for at, message in waiting if when(message)), len(line))
                while len(line) > place:
                    left.append(line.pop())
        return left

    def _led_by(self, message: Message) -> deque[Message]:
        """The line in which it is this message's turn; else an empty one."""
        line = self._lines.get(message.group_key or "")
        return line if line and line[0] is message else deque()
