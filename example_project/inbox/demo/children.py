"""Child processes that the demo starts, watches and ends: the web server and the consumers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from django.conf import settings

ROOT = Path(__file__).resolve().parents[3]


class Child:
    """A management command in a process of its own, writing to a log file."""

    def __init__(self, name: str, *arguments: str, log_directory: Path, **environment: str):
        self.name = name
        self.arguments = arguments
        self.environment = environment
        self.log = log_directory / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "example_project.inbox.demo.tether", *self.arguments],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**_environment(), **self.environment},
                # Ctrl-C must reach only the demo, which then ends its children.
                start_new_session=True,
            )

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while the process runs."""
        return self._process.poll() if self._process else None

    def let_go(self) -> None:
        """Ask the process to finish its work and end."""
        if self._process and self._process.stdin:
            self._process.stdin.close()

    def wait(self, deadline: float) -> None:
        """Wait for the process to end; kill it after *deadline*, a monotonic time."""
        if not self._process:
            return
        try:
            self._process.wait(max(0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def last_words(self, lines: int = 15) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def end(children: list[Child], seconds: float = 15) -> None:
    """End *children* together, and kill those that do not finish within *seconds*."""
    for child in children:
        child.let_go()
    deadline = time.monotonic() + seconds
    for child in children:
        child.wait(deadline)


def _environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": settings.SETTINGS_MODULE,
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
    }
