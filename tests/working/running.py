"""Starts and ends processes of the working project."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

__all__ = ["ROOT", "Command", "runconsumer"]

ROOT = Path(__file__).resolve().parents[2]


class Command:
    """A manage.py command in a process; killed at the end of the block if it is still running."""

    def __init__(self, url: str, *arguments: object, **environment: object) -> None:
        self.arguments = [str(argument) for argument in arguments]
        self._log = tempfile.TemporaryFile("w+b")  # noqa: SIM115
        self._environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("PGQUEUE_")},
            "PYTHONPATH": os.pathsep.join([*environment.pop("path", []), str(ROOT)]),  # type: ignore[misc]
            "DJANGO_SETTINGS_MODULE": "tests.working.settings",
            "DATABASE_URL": url,
            "PYTHONUNBUFFERED": "1",
            **{name: str(value) for name, value in environment.items()},
        }
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "django", *self.arguments],
            cwd=ROOT,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            # A file, since nobody would read a pipe meanwhile.
            stdout=self._log,
            stderr=subprocess.STDOUT,
            # A shell's background job ignores SIGINT, and its children would too.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def send(self, number: int) -> None:
        if self.alive:
            self.process.send_signal(number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self.wait()

    def terminate(self) -> None:
        self.send(signal.SIGTERM)

    def wait(self, seconds: float = 30) -> int:
        """Wait for the end; returns the exit code."""
        return self.process.wait(seconds)

    @property
    def output(self) -> str:
        """The process's output so far."""
        self._log.seek(0)
        return self._log.read().decode()

    def __enter__(self) -> Command:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.send(signal.SIGCONT)
        self.kill()
        self._log.close()


def runconsumer(url: str, *arguments: object, **environment: Any) -> Command:
    return Command(url, "runconsumer", *arguments, **environment)
