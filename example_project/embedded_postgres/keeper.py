"""The process that owns one embedded PostgreSQL: it stops the server when nobody uses it any more.

`server.py` runs this file by its path. It is postgres's parent, knows only the standard library,
and imports nothing of ours, so it works from any directory and for any interpreter.

Three lock files in the server's home directory say who is there. All are `flock`s: the kernel
drops them when a process ends, however it ends.

    start.lock    exclusive, while a server is being started or stopped
    users.lock    shared, held by every process that uses the server
    keeper.lock   exclusive, held by the keeper as long as it lives; contains its process id
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

POLL_SECONDS = 0.1
# How long a stop may take before the next, rougher signal: fast, immediate, kill.
STOP_SIGNALS = ((signal.SIGINT, 30), (signal.SIGQUIT, 10), (signal.SIGKILL, 10))
PR_SET_PDEATHSIG = 1


class Keeper:
    def __init__(
        self, home: str, command: list[str], environment: dict[str, str], user: list[int] | None
    ) -> None:
        self.home = Path(home)
        self.command = command
        self.environment = environment
        self.user = user
        self.asked_to_stop = False

    def run(self) -> None:
        self.hold_keeper_lock()
        if os.fork():
            os._exit(0)  # the starter has a child to reap at once, and never has to wait for us
        self.write_pid()
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self.ask_to_stop)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

        postgres = self.start_postgres()
        while postgres.poll() is None:
            if self.asked_to_stop or self.nobody_is_left():
                self.stop_postgres(postgres)
            time.sleep(POLL_SECONDS)

    def hold_keeper_lock(self) -> None:
        self.keeper_lock = open_lock(self.home / "keeper.lock")
        if not try_exclusive(self.keeper_lock):
            sys.exit("another keeper already looks after this directory")

    def write_pid(self) -> None:
        os.ftruncate(self.keeper_lock, 0)
        os.pwrite(self.keeper_lock, str(os.getpid()).encode(), 0)

    def ask_to_stop(self, signum: int, frame: FrameType | None) -> None:
        self.asked_to_stop = True

    def start_postgres(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            env=self.environment,
            preexec_fn=self.become_postgres,  # safe: the keeper has one thread
        )

    def become_postgres(self) -> None:
        if self.user:
            uid, gid = self.user
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)
        # After setuid, which would clear it: a killed keeper takes its server along.
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGINT))

    def nobody_is_left(self) -> bool:
        """True once no process holds users.lock; then start.lock stays ours until we are gone."""
        try:
            start, users = (os.open(self.home / name, os.O_RDWR) for name in LOCKS)
        except FileNotFoundError:
            return True  # the whole directory was deleted
        if try_exclusive(start) and try_exclusive(users):
            return True
        os.close(start)
        os.close(users)
        return False

    def stop_postgres(self, postgres: subprocess.Popen[bytes]) -> None:
        for signum, patience in STOP_SIGNALS:
            postgres.send_signal(signum)
            with contextlib.suppress(subprocess.TimeoutExpired):
                postgres.wait(patience)
                return


LOCKS = ("start.lock", "users.lock")


def open_lock(path: Path) -> int:
    """Open (or create) a lock file. The descriptor is close-on-exec: no child keeps the lock."""
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def try_exclusive(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


if __name__ == "__main__":
    options: dict[str, Any] = json.loads(sys.argv[1])
    Keeper(**options).run()
