"""A cluster machine with PySpark and our packages, without Django."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import pyspark_pgqueue
from django_pgqueue.models import Message
from tests.spark.clusters import machines

ROOT = Path(__file__).resolve().parents[2]
#: The text of a module that makes a package look uninstalled.
ABSENT = "raise ImportError(f'{__name__} is not installed on this machine')\n"

ROUND_TRIP = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession

url = sys.argv[1]
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "1")
    .config("spark.log.level", "ERROR")
    .getOrCreate()
)
rows = spark.read.format("pgqueue").options(url=url, subscribe="orders").load()
rows.selectExpr("body", "concat('key-', id % 3) AS unique_key").write.format("pgqueue").mode(
    "append"
).options(url=url, queue="copies").save()
print(json.dumps([rows.count(), sorted(m for m in sys.modules if m.startswith("django"))]))
"""

STREAM = """
import sys
from pyspark_pgqueue.session import local_session

url, folder = sys.argv[1:]
source = local_session().readStream.format("pgqueue").options(url=url, subscribe="orders")
sink = source.load().select("body").writeStream.format("pgqueue").trigger(availableNow=True)
query = sink.options(url=url, queue="copies", checkpointLocation=folder).start()
query.awaitTermination()
"""

PICKLE = """
import sys
sys.path.append(sys.argv[1])
from pyspark import cloudpickle
from pyspark_pgqueue import DefaultSource
from pyspark_pgqueue.jobs.executors import _Task

made = {"source": DefaultSource({"subscribe": "orders"}), "job": _Task(print, [])}
sys.stdout.buffer.write(cloudpickle.dumps(made[sys.argv[2]]))
"""
UNPICKLE = """
import pickle, sys
made = pickle.load(sys.stdin.buffer)
print(made.options["subscribe"] if hasattr(made, "options") else made.function)
"""


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """The environment of a process that finds our packages and no Django."""
    home = tmp_path / "machine"
    for package in machines.PACKAGES:
        shutil.copytree(package, home / package.name)
    for name in ("django", "asgiref"):
        (home / name).mkdir()
        (home / name / "__init__.py").write_text(ABSENT)
    return {**os.environ, "PYTHONPATH": str(home), "HOME": str(home)}


def run(command: list[str], machine: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=machine["HOME"],
        env=machine,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_every_module_imports_without_django(machine: dict[str, str]) -> None:
    home = Path(pyspark_pgqueue.__file__).parent
    paths = [path.relative_to(home.parent) for path in home.rglob("[!_]*.py")]
    modules = sorted(".".join(path.with_suffix("").parts) for path in paths)
    code = f"import {', '.join(modules)}; from pyspark_pgqueue import DefaultSource"

    run(["-c", f"{code}; assert DefaultSource.name() == 'pgqueue'"], machine)

    for name in ("source.options", "sink.staging", "jobs.export", "rollup.in_database"):
        assert f"pyspark_pgqueue.{name}" in modules


def test_jobs_start_without_django(machine: dict[str, str]) -> None:
    assert "--hold-retention" in run(["-m", "pyspark_pgqueue", "export", "--help"], machine)


@pytest.mark.slow
def test_source_and_sink_work_without_django(
    url: str, finish: Callable[..., list[int]], machine: dict[str, str], tmp_path: Path
) -> None:
    finish("orders", 30)
    Message.objects.create_queue("copies")
    script = tmp_path / "round_trip.py"
    script.write_text(ROUND_TRIP)

    count, modules = json.loads(run([str(script), url], machine).strip().splitlines()[-1])

    assert (count, modules) == (30, [])
    # One message per key.
    assert Message.objects.filter(queue__name="copies").count() == 3


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """The Python of a machine with the drivers and without the packages."""
    return machines.python_with(tmp_path / "bare")


@pytest.mark.parametrize(("made", "told"), [("source", b"orders"), ("job", b"function print")])
def test_executor_takes_the_packages_from_the_drivers_zip_or_says_what_it_lacks(
    bare: Path, tmp_path: Path, made: str, told: bytes
) -> None:
    shipped = machines.package_zip(tmp_path / "pgqueue.zip")
    alone = {"cwd": tmp_path, "env": machines.environment(tmp_path), "capture_output": True}
    pickled = subprocess.run([bare, "-c", PICKLE, shipped, made], check=True, **alone).stdout

    found = subprocess.run([bare, "-c", UNPICKLE], input=pickled, check=True, **alone).stdout
    shipped.unlink()
    missed = subprocess.run([bare, "-c", UNPICKLE], input=pickled, **alone)

    assert told in found
    assert b"lack pyspark_pgqueue, django_pgqueue. Ship both packages: " in missed.stderr


@pytest.mark.slow
def test_stream_runs_under_spark_submit_with_a_zip_of_the_packages(
    url: str, finish: Callable[..., list[int]], bare: Path, tmp_path: Path
) -> None:
    finish("orders", 30)
    Message.objects.create_queue("copies")
    shipped = machines.package_zip(tmp_path / "pgqueue.zip")
    script = tmp_path / "stream.py"
    script.write_text(STREAM)
    submit = (machines.SUBMIT, "--master", "local[1]", "--conf", "spark.ui.enabled=false")

    done = subprocess.run(
        [*submit, "--py-files", shipped, script, url, tmp_path / "checkpoint"],
        cwd=tmp_path,
        env={**machines.environment(tmp_path), "PYSPARK_PYTHON": str(bare)},
        capture_output=True,
        text=True,
        timeout=600,
    )

    assert done.returncode == 0, done.stderr[-3000:]
    assert Message.objects.filter(queue__name="copies").count() == 30
