"""Client processes with connections of their own, started once per run."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable
from typing import Any

__all__ = ["Clients", "repeat"]

#: A client's result: messages, and start and end on the machine's monotonic clock.
Share = tuple[int, float, float]
Step = Callable[[], int]


def repeat(step: Step, seconds: float, most: int | None = None) -> Share:
    """Call ``step`` for ``seconds``, or until ``most`` messages are done or none are left."""
    count = 0
    started = now = time.monotonic()
    while now - started < seconds and (most is None or count < most):
        done = step()
        if not done:
            break
        count += done
        now = time.monotonic()
    return count, started, time.monotonic()


class Clients:
    """A pool of processes that each prepare a task, and then start it at the same time."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._pool: list[tuple[Any, Any]] = []

    def run(self, number: int, task: Callable[..., Step], seconds: float, **options: Any) -> float:
        """Messages per second of ``number`` clients, from the first start to the last end."""
        shares = self.shares(number, task, seconds, **options)
        done = sum(count for count, _, _ in shares)
        return done / (max(end for *_, end in shares) - min(start for _, start, _ in shares))

    def shares(
        self, number: int, task: Callable[..., Step], seconds: float, **options: Any
    ) -> list[Share]:
        """The result of each client.

        ``task(**options)`` runs in each client and returns the step to repeat. It also gets the
        client's number as ``place``.
        """
        while len(self._pool) < number:
            self._hire()
        for place, (pipe, _) in enumerate(self._pool[:number]):
            pipe.send((task, seconds, {**options, "place": place}))
        self._answers(number)
        for pipe, _ in self._pool[:number]:
            pipe.send("go")
        return self._answers(number)

    def _answers(self, number: int) -> list[Any]:
        answers = [pipe.recv() for pipe, _ in self._pool[:number]]
        for answer in answers:
            if isinstance(answer, Exception):
                # Stop all clients: the others may wait for a signal that never comes.
                self.close()
                raise answer
        return answers

    def _hire(self) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        self._pool.append((ours, process))

    def close(self) -> None:
        for pipe, process in self._pool:
            pipe.close()
            process.terminate()
            process.join()
        self._pool.clear()


def _serve(pipe: Any) -> None:
    """A client's loop: prepare, report ready, wait for the start, run, report the result."""
    # Ctrl-C is handled by the parent, whose end closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import django

    django.setup()
    try:
        while True:
            task, seconds, options = pipe.recv()
            try:
                step = task(**options)
                pipe.send("ready")
                pipe.recv()
                pipe.send(repeat(step, seconds))
            except EOFError:
                raise
            except Exception as error:
                pipe.send(RuntimeError(f"a client failed: {error!r}"))
    except EOFError:
        return
