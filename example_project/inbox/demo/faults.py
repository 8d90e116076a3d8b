"""Faults that the demo plants in some payloads, and the middleware that triggers them.

The demo's consumers run with ``DEMO_FAULTS``. Without this setting a planted payload is handled
like any other.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from django.conf import settings

RETRY, POISON, KILL = "retry", "poison", "kill"
MARK = "demo_fault"


class PoisonMessage(LookupError):
    """The handler cannot handle this message, however often it tries."""


def plan(total: int) -> dict[int, str]:
    """Choose which of *total* deliveries, counted from 1, get which fault.

    >>> sorted(plan(12).items())
    [(5, 'retry'), (6, 'kill'), (10, 'poison')]
    """
    faults = dict.fromkeys(range(5, total + 1, 24), RETRY)
    faults |= dict.fromkeys(range(10, total + 1, 24), POISON)
    return faults | {max(1, total // 2): KILL}


def plant(
    deliveries: Iterable[tuple[str, bytes]], faults: dict[int, str]
) -> Iterator[tuple[str, bytes]]:
    for number, (event, body) in enumerate(deliveries, start=1):
        if fault := faults.get(number):
            body = json.dumps({**json.loads(body), MARK: fault}).encode()
        yield event, body


def inject(call: Callable[..., Any]) -> Callable[..., Any]:
    """A consumer middleware that fails, or kills its process, if the payload says so."""
    if not getattr(settings, "DEMO_FAULTS", False):
        return call

    def run(given: Any, context: Any) -> Any:
        fault = context.messages[0].body.get(MARK)
        is_first = context.deliveries == 1
        if fault == POISON:
            raise PoisonMessage("this payload breaks the handler (planted by the demo)")
        if fault == RETRY and is_first:
            raise ConnectionError("a service is away for a moment (planted by the demo)")
        if fault == KILL and is_first:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(given, context)

    return run
