"""What a consumer runs: its handlers' runs, and on request where each is in the code.

A stack has places in the code and their source lines, but no values.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import dropwhile
from types import FrameType
from typing import Any

from django_pgqueue.worker.running import Running, Stage, guarded
from django_pgqueue.worker.subscription import Subscription

#: Maximum numbers of runs and of stacks that a process names, the longest runs first, and the
#: maximum number of a stack's innermost frames.
RUNS, STACKS, FRAMES = 20, 20, 60


def runs_of(subscriptions: Iterable[Subscription]) -> list[dict[str, Any]]:
    """Return the runs of handlers, the longest first: what runs, on which message, for how long."""
    return [described for described, _running in _longest(subscriptions)][:RUNS]


def stacks_of(subscriptions: Iterable[Subscription]) -> list[dict[str, Any]]:
    """Return the runs of handlers, the longest first, each with its stack as text."""
    frames = sys._current_frames()
    return [
        {**described, "stack": "".join(traceback.format_list(_places(running, frames)))}
        for described, running in _longest(subscriptions)[:STACKS]
    ]


def _longest(subscriptions: Iterable[Subscription]) -> list[tuple[dict[str, Any], Running]]:
    return sorted(_running(subscriptions), key=lambda each: -each[0]["seconds"])


def _running(subscriptions: Iterable[Subscription]) -> Iterator[tuple[dict[str, Any], Running]]:
    now = time.monotonic()
    for subscription in subscriptions:
        for running in list(subscription.running.values()):
            messages = running.messages
            # Without messages the run has just ended.
            if messages and running.stage is not Stage.CONCLUDED:
                described = {
                    "queue": subscription.name,
                    "message": messages[0].id,
                    "number": len(messages),
                    "what": messages[0].task or subscription.handler.label,
                    "seconds": round(now - running.started, 1),
                }
                yield described, running


def _places(running: Running, frames: dict[int, FrameType]) -> list[traceback.FrameSummary]:
    """Return where a run is: its innermost frames, without those that called the handler."""
    if isinstance(running.cancel, partial):  # an async handler
        found = list(_awaited(running.cancel.args[0].__self__.get_coro()))
    else:
        found = []
        frame = frames.get(running.thread or 0)
        while frame is not None and frame.f_code is not guarded.__code__:
            found.insert(0, frame)
            frame = frame.f_back
    theirs = list(dropwhile(_is_ours, found)) or found
    walked = [(frame, frame.f_lineno) for frame in theirs[-FRAMES:]]
    return list(traceback.StackSummary.extract(iter(walked)))


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith("django_pgqueue.")


def _awaited(coroutine: Any) -> Iterator[FrameType]:
    """Yield the frames of a coroutine and of those that it awaits, the innermost last."""
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        yield frame
        coroutine = coroutine.cr_await
