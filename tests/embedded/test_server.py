"""The embedded PostgreSQL: shared by processes, and stopped after the last of them."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import environ
import psycopg
import pytest
from django.core.exceptions import ImproperlyConfigured

from django_pgqueue.embedded.server import WHEELS, EmbeddedServer
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {"fsync": "off"}
DEBIAN_BIN_DIR = Path("/usr/lib/postgresql/15/bin")

USE_SERVER = """
import sys
from django_pgqueue.embedded.server import EmbeddedServer
server = EmbeddedServer(sys.argv[1], settings={"fsync": "off"})
server.start()
print((server.data / "postmaster.pid").read_text().splitlines()[0], flush=True)
sys.stdin.read()
"""


@pytest.fixture
def directory() -> Iterator[Path]:
    # Not tmp_path: for root, the server's user could not enter pytest's private folders.
    path = Path(tempfile.mkdtemp(prefix="embedded-postgres-test-"))
    path.chmod(0o755)
    yield path
    until(lambda: not processes_of(path), 30)  # no process outlives the users
    shutil.rmtree(path)


@pytest.fixture
def server(directory: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(directory, settings=SETTINGS) as server:
        yield server


def postmaster_pid(server: EmbeddedServer) -> int:
    return int((server.data / "postmaster.pid").read_text().splitlines()[0])


def query(server: EmbeddedServer, statement: str) -> object:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        return connection.execute(statement).fetchone()[0]


def is_alive(pid: int) -> bool:
    return "postgres" in command_of(pid)


def command_of(pid: int) -> str:
    """A process's command line; empty after its end."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def processes_of(directory: Path, keepers: bool = False) -> list[int]:
    """The process ids of *directory*'s server and keeper, or of its keeper alone."""
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    commands = {pid: command_of(pid) for pid in pids}
    return [
        pid
        for pid, text in commands.items()
        if (f"-D\0{directory}/data\0" in text and not keepers)
        or ("users.lock" in text and f"-D{directory}/data" in text)
    ]


def run_python(code: str, *arguments: object, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


def leave(user: subprocess.Popen[str]) -> None:
    user.communicate(timeout=30)


def test_server_speaks_utf8_on_a_socket_only(server):
    settings = {
        name: query(server, f"SHOW {name}")
        for name in ("server_encoding", "listen_addresses", "max_connections")
    }

    assert settings == {
        "server_encoding": "UTF8",
        "listen_addresses": "",
        "max_connections": "200",
    }
    assert query(server, "SELECT upper('é')") == "É"


def test_url_is_understood_by_libpq_and_by_django_environ(server):
    with psycopg.connect(server.url()) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)

    configured = environ.Env.db_url_config(server.url("inbox"))
    assert configured["NAME"] == "inbox"
    assert configured["OPTIONS"] == {"host": server.host, "port": server.port}


def test_settings_reach_the_server(directory):
    with EmbeddedServer(directory, settings={**SETTINGS, "work_mem": "7MB"}) as server:
        assert query(server, "SHOW work_mem") == "7MB"


def test_data_outlives_a_restart(server):
    with psycopg.connect(server.url()) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")

    server.stop()
    server.start()

    assert query(server, "SELECT answer FROM kept") == 42


def test_two_processes_starting_at_once_share_one_server(directory):
    users = [run_python(USE_SERVER, directory) for _ in range(2)]

    pids = {int(user.stdout.readline()) for user in users}

    assert len(pids) == 1
    for user in users:
        leave(user)


def test_server_stays_while_one_of_two_users_stays(directory):
    first, second = users = [run_python(USE_SERVER, directory) for _ in range(2)]
    pid = {int(user.stdout.readline()) for user in users}.pop()

    leave(first)
    with EmbeddedServer(directory) as server:
        server.stop()  # returns because there is another user, while the server runs

    assert is_alive(pid)
    leave(second)
    until(lambda: not is_alive(pid), 30)


def test_server_ends_after_its_only_user_was_killed(directory):
    user = run_python(USE_SERVER, directory)
    pid = int(user.stdout.readline())

    user.kill()
    leave(user)

    until(lambda: not is_alive(pid), 30)


def test_server_ends_after_its_user_was_killed_while_it_started(directory):
    user = run_python(USE_SERVER, directory)
    until((directory / "data" / "postmaster.pid").exists, 30)

    user.kill()
    leave(user)

    until(lambda: not processes_of(directory), 30)


def test_child_of_a_fork_keeps_the_server_after_its_parent(directory):
    code = USE_SERVER.replace("sys.stdin.read()", "import os\nif os.fork() == 0: sys.stdin.read()")
    parent = run_python(code, directory)
    pid = int(parent.stdout.readline())

    parent.wait(30)
    with EmbeddedServer(directory) as server:
        server.stop()

    assert is_alive(pid)
    leave(parent)
    until(lambda: not is_alive(pid), 30)


def test_parent_keeps_the_server_after_a_forked_child_stopped_it(server):
    code = USE_SERVER.replace(
        "sys.stdin.read()",
        "import os\nif os.fork() == 0: server.stop(); os._exit(0)\n"
        "os.wait()\nprint('left', flush=True)\nsys.stdin.read()",
    )
    user = run_python(code, server.home)
    pid = int(user.stdout.readline())
    assert user.stdout.readline() == "left\n"

    server.stop()

    assert is_alive(pid)
    leave(user)


def test_program_started_by_a_user_does_not_keep_the_server(directory):
    code = USE_SERVER + "\n".join(
        [
            "import subprocess",
            "quiet = {'stdout': subprocess.DEVNULL, 'close_fds': False}",
            "child = subprocess.Popen(['sleep', '600'], **quiet)",
            "print(child.pid)",
        ]
    )
    user = run_python(code, directory)
    pid = int(user.stdout.readline())

    child, _ = user.communicate(timeout=30)

    until(lambda: not is_alive(pid), 30)
    os.kill(int(child), signal.SIGKILL)


def test_stopped_server_comes_back_with_start(server):
    before = postmaster_pid(server)

    server.kill("immediate")
    assert not server.is_running()
    server.start()

    assert postmaster_pid(server) != before
    assert query(server, "SELECT 1") == 1


def test_start_recovers_after_the_server_was_killed(server):
    with psycopg.connect(server.url()) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    before = postmaster_pid(server)

    os.kill(before, signal.SIGKILL)
    until(lambda: not is_alive(before), 30)
    server.start()

    assert query(server, "SELECT answer FROM kept") == 42


def test_server_whose_keeper_was_killed_is_used_and_kept_again(directory):
    user = run_python(USE_SERVER, directory)
    pid = int(user.stdout.readline())
    until(lambda: processes_of(directory, keepers=True), 30)
    for process in (*processes_of(directory, keepers=True), user.pid):
        os.kill(process, signal.SIGKILL)
    leave(user)
    assert is_alive(pid)

    user = run_python(USE_SERVER, directory)
    assert int(user.stdout.readline()) == pid
    until(lambda: processes_of(directory, keepers=True), 30)
    user.kill()
    leave(user)

    until(lambda: not is_alive(pid), 30)


def test_keeper_that_was_killed_is_replaced_by_a_user_that_stays(directory):
    again = "sys.stdin.readline(); server.start(); sys.stdin.read()"
    user = run_python(USE_SERVER.replace("sys.stdin.read()", again), directory)
    pid = int(user.stdout.readline())
    [keeper] = until(lambda: processes_of(directory, keepers=True), 30)
    os.kill(keeper, signal.SIGKILL)
    until(lambda: not command_of(keeper), 30)

    user.stdin.write("\n")
    user.stdin.flush()

    until(lambda: processes_of(directory, keepers=True), 30)
    user.kill()
    leave(user)
    until(lambda: not is_alive(pid), 30)


def test_keeper_survives_a_signal_to_every_process_that_names_the_project(directory):
    user = run_python(USE_SERVER, directory)
    pid = int(user.stdout.readline())
    [keeper] = until(lambda: processes_of(directory, keepers=True), 30)
    until(lambda: ignores(keeper, signal.SIGTERM), 30)

    os.kill(keeper, signal.SIGTERM)
    user.kill()
    leave(user)

    until(lambda: not is_alive(pid), 30)


def ignores(pid: int, number: int) -> bool:
    [line] = re.findall(r"^SigIgn:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.M)
    return bool(int(line, 16) & 1 << number - 1)


def test_keeper_of_a_deleted_directory_does_not_stop_the_server_in_its_place(directory):
    home = directory / "postgres"
    first = run_python(USE_SERVER, home)
    old = int(first.stdout.readline())
    until(lambda: shutil.rmtree(home, ignore_errors=True) or not home.exists())
    with EmbeddedServer(home, settings=SETTINGS) as server:
        new = postmaster_pid(server)

        first.kill()
        leave(first)
        until(lambda: len(processes_of(home, keepers=True)) == 1, 30)

        assert new != old
        assert query(server, "SELECT 1") == 1
        assert postmaster_pid(server) == new
    os.kill(old, signal.SIGKILL)  # it would end by itself, within a minute


def test_start_works_after_every_process_was_killed(directory):
    user = run_python(USE_SERVER, directory)
    pid = int(user.stdout.readline())
    until(lambda: processes_of(directory, keepers=True), 30)
    for process in (*processes_of(directory, keepers=True), user.pid, pid):
        os.kill(process, signal.SIGKILL)
    leave(user)

    with EmbeddedServer(directory, settings=SETTINGS) as server:
        assert query(server, "SELECT 1") == 1


def test_start_survives_a_pid_file_whose_number_another_process_got(directory):
    with EmbeddedServer(directory, settings=SETTINGS) as server:
        lines = (server.data / "postmaster.pid").read_text().splitlines()
        os.kill(postmaster_pid(server), signal.SIGKILL)
        until(lambda: not server.is_running(), 30)
    pid_file = server.data / "postmaster.pid"
    pid_file.write_text("\n".join([str(os.getpid()), *lines[1:]]) + "\n")

    with server:
        assert query(server, "SELECT 1") == 1


def test_unfinished_initdb_is_cleared_and_done_again(directory):
    unfinished = directory / "new"
    unfinished.mkdir()
    (unfinished / "PG_VERSION").write_text("18\n")

    with EmbeddedServer(directory, settings=SETTINGS) as server:
        assert query(server, "SELECT 1") == 1

    assert not unfinished.exists()


def test_server_never_runs_as_root(server):
    assert server.data.stat().st_uid != 0
    assert Path(f"/proc/{postmaster_pid(server)}").stat().st_uid != 0


@pytest.mark.parametrize("name", ["deep" * 20, "a, comma"])
def test_data_stays_in_a_directory_whose_path_is_no_address_of_a_socket(directory, name):
    deep = directory / name / "postgres"

    with EmbeddedServer(deep, settings=SETTINGS) as server:
        assert query(server, "SELECT 1") == 1

    assert (deep / "data" / "PG_VERSION").exists()
    assert len(f"{server.host}/.s.PGSQL.{server.port}") < 100
    Path(server.host).unlink()


def test_link_that_leads_elsewhere_is_refused(directory):
    server = EmbeddedServer(directory / "a, comma", settings=SETTINGS)
    link = Path(server.host)
    link.symlink_to(directory)

    with pytest.raises(psycopg.OperationalError, match=f"{link} belongs to another"):
        server.start()
    link.unlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as another user")
def test_files_that_the_servers_user_cannot_reach_are_kept_in_var_tmp(tmp_path, monkeypatch):
    tmp_path.chmod(0o700)
    wheel, folder = next((name, f) for name, f in WHEELS.items() if importlib.util.find_spec(name))
    programs = Path(importlib.util.find_spec(wheel).origin).parent / folder
    shutil.copytree(programs, tmp_path / wheel / folder, symlinks=True)
    shutil.copytree(f"{programs.parent}.libs", tmp_path / f"{wheel}.libs")
    (tmp_path / wheel / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)

    with EmbeddedServer(tmp_path / "postgres", settings=SETTINGS) as server:
        assert query(server, "SELECT 1") == 1
        assert server.home.parent == Path("/var/tmp")
        assert server.bin_dir.is_relative_to(server.home)
    shutil.rmtree(server.home)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_directory_of_another_user_is_refused(directory):
    os.chown(directory, 12345, 12345)

    with pytest.raises(psycopg.OperationalError, match="belongs to another user"):
        EmbeddedServer(directory).start()


@pytest.mark.skipif(not DEBIAN_BIN_DIR.exists(), reason="needs Debian's postgresql-15")
def test_other_binaries_can_be_used(directory):
    with EmbeddedServer(directory, settings=SETTINGS, bin_dir=DEBIAN_BIN_DIR) as server:
        assert query(server, "SHOW server_version").startswith("15.")


def test_data_of_another_version_is_refused(directory):
    with EmbeddedServer(directory, settings=SETTINGS) as server:
        pass
    (server.data / "PG_VERSION").write_text("9\n")

    with pytest.raises(psycopg.OperationalError, match=r"initialized by PostgreSQL version 9"):
        server.start()


def test_missing_wheel_is_named_with_the_command_that_installs_it(directory, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(ImproperlyConfigured, match=r'pip install "django-postgres-mq\[embedded\]"'):
        EmbeddedServer(directory)


def test_failed_start_shows_the_end_of_the_log(directory):
    server = EmbeddedServer(directory, settings={**SETTINGS, "shared_buffers": "plenty"})

    with pytest.raises(psycopg.OperationalError, match=r"invalid value for parameter.*plenty"):
        server.start()
