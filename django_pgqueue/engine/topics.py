"""Topic routing as in AMQP: finds the patterns that match a routing key. No I/O.

A key consists of words joined by dots: ``github.push.main``. In a pattern ``*`` stands for one word
and ``#`` for zero or more words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from django_pgqueue.errors import InvalidArgument

LONGEST = 255

_KEY = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", re.ASCII)
#: What a pattern must match, in Python and in PostgreSQL.
PATTERN = r"(\*|#|[A-Za-z0-9_-]+)(\.(\*|#|[A-Za-z0-9_-]+))*"
_PATTERN = re.compile(PATTERN)


def routing_key(key: object) -> str:
    """Validate a routing key, and return it unchanged. Raises InvalidArgument."""
    if not isinstance(key, str) or len(key) > LONGEST or not _KEY.fullmatch(key):
        raise InvalidArgument(
            f"{key!r} is not a routing key: use words of A-Z a-z 0-9 _ - joined by dots, "
            f"{LONGEST} characters at most"
        )
    return key


def topic_pattern(pattern: object) -> str:
    """Validate a topic pattern, and return it unchanged. Raises InvalidArgument."""
    if not isinstance(pattern, str) or len(pattern) > LONGEST or not _PATTERN.fullmatch(pattern):
        raise InvalidArgument(
            f"{pattern!r} is not a topic pattern: use words joined by dots, {LONGEST} characters "
            f"at most. A word is * (any one word), # (any number of words), or characters of "
            f"A-Z a-z 0-9 _ -"
        )
    return pattern


class _Node:
    """A node of the tree: its child for each next word, and the patterns that end here."""

    __slots__ = ("next", "patterns")

    def __init__(self) -> None:
        self.next: dict[str, _Node] = {}
        #: Several patterns end at one node if they are equivalent, such as "#" and "#.#".
        self.patterns: set[str] = set()


class Router:
    """Finds the patterns that match a key. One pass through a tree of words compares them all.

    >>> Router(["a.*", "a.#"]).match("a.b") == {"a.*", "a.#"}
    True
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self._root = _Node()
        for pattern in patterns:
            node = self._root
            for word in topic_pattern(pattern).split("."):
                if word not in node.next:
                    node.next[word] = _Node()
                node = node.next[word]
                if word == "#":
                    # "#" loops to its own node to match more words, so "#.#" equals "#".
                    node.next["#"] = node
            node.patterns.add(pattern)

    def match(self, key: str) -> set[str]:
        here = self._without_a_word([self._root])
        for word in routing_key(key).split("."):
            found: dict[int, _Node] = {}
            for node in here:
                for step in (word, "*", "#"):
                    if (after := node.next.get(step)) is not None:
                        found[id(after)] = after
            here = self._without_a_word(found.values())
        return {pattern for node in here for pattern in node.patterns}

    @staticmethod
    def _without_a_word(nodes: Iterable[_Node]) -> list[_Node]:
        """Return the nodes, and those reached from them by a "#" that stands for no word."""
        reached = {id(node): node for node in nodes}
        waiting = list(reached.values())
        while waiting:
            after = waiting.pop().next.get("#")
            if after is not None and id(after) not in reached:
                reached[id(after)] = after
                waiting.append(after)
        return list(reached.values())
