"""The machines of a cluster: folders with their own Python, and Spark's processes in them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark

import django_pgqueue
import pyspark_pgqueue
from tests.waiting import until

__all__ = [
    "PACKAGES",
    "SPARK",
    "SUBMIT",
    "environment",
    "executors_under",
    "package_zip",
    "python_with",
    "standalone",
    "stop",
]

SPARK = Path(pyspark.__file__).parent
#: What a cluster needs of ours.
PACKAGES = [Path(each.__file__).parent for each in (django_pgqueue, pyspark_pgqueue)]
SUBMIT = str(SPARK / "bin" / "spark-submit")
#: The packages installed on a machine. Others of this Python cannot be imported there.
DRIVERS = (
    *("pyspark", "py4j", "pyarrow", "adbc_driver_*", "_postgresql*", "psycopg*"),
    *("importlib_resources", "typing_extensions*", "packaging"),
)
CONNECT = ("grpc*", "google*", "zstandard*", "pandas*", "numpy*", "dateutil", "six*", "pytz")


def python_with(folder: Path, *packages: Path, connect: bool = False) -> Path:
    """Create a virtual environment with PySpark, the drivers and these packages; returns its
    Python.
    """
    venv.EnvBuilder(symlinks=True).create(folder)
    here = Path(sysconfig.get_paths()["purelib"])
    there = next(folder.glob("lib/python*/site-packages"))
    for pattern in (*DRIVERS, *(CONNECT if connect else ())):
        for found in here.glob(pattern):
            (there / found.name).symlink_to(found)
    for package in packages:
        shutil.copytree(package, there / package.name)
    return folder / "bin" / "python"


def package_zip(path: Path) -> Path:
    """Create the zip of the packages as docs/spark.md says."""
    subprocess.run([sys.executable, "-m", "zipfile", "-c", path, *PACKAGES], check=True)
    assert "django_pgqueue/engine/read/read.sql" in zipfile.ZipFile(path).namelist()
    return path


def environment(folder: Path) -> dict[str, str]:
    """The environment of a process that finds only its Python's packages."""
    return {
        **{key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        "HOME": str(folder),
        "SPARK_HOME": str(SPARK),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
    }


@contextmanager
def standalone(folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """Start a master and two workers of one core, in folders of their own; returns the master's
    address.
    """
    log = folder / "master.log"
    processes = [_daemon("Master", ["--port", "0"], log, environment)]
    try:
        address = until(lambda: _told(log, "Starting Spark master at "), 120)
        logs = [folder / f"machine-{number}" / "worker.log" for number in (1, 2)]
        for log in logs:
            log.parent.mkdir()
            given = ["--cores", "1", "--memory", "1g", "-d", str(log.parent), address]
            processes.append(_daemon("Worker", given, log, environment))
        registered = "Successfully registered with master "
        until(lambda: all(_told(log, registered) for log in logs), 120)
        yield address
    finally:
        for process in processes:
            stop(process)


def _daemon(
    role: str, given: list[str], log: Path, environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    name = f"org.apache.spark.deploy.{role.lower()}.{role}"
    everywhere = ["--host", "127.0.0.1", "--webui-port", "0"]
    with log.open("w") as output:
        return subprocess.Popen(
            [str(SPARK / "bin" / "spark-class"), name, *everywhere, *given],
            cwd=log.parent,
            env=environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def _told(log: Path, words: str) -> str:
    """The word after this text in a log, if it is there yet."""
    found = log.read_text().partition(words)[2]
    return found.split()[0] if "\n" in found else ""


def stop(process: subprocess.Popen[Any]) -> None:
    """Kill a process and its process group, of which it is the leader."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def executors_under(pid: int, folder: Path) -> list[int]:
    """The JVMs that run tasks: descendants of a process, or processes in a folder."""
    listed = subprocess.run(["ps", "-eww", "-o", "pid,ppid,args"], capture_output=True, text=True)
    lines = [line.split(None, 2) for line in listed.stdout.splitlines()[1:]]
    family = {pid}
    while grown := {int(p) for p, parent, _ in lines if int(parent) in family} - family:
        family |= grown
    return [
        int(p)
        for p, _, command in lines
        if "CoarseGrainedExecutorBackend" in command
        and (int(p) in family or Path(f"/proc/{p}/cwd").resolve().is_relative_to(folder))
    ]
