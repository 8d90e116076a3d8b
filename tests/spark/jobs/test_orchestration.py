"""The examples in docs/exports.md start an export that arrives."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import pytest

from django_pgqueue.models import Lake, Message
from django_pgqueue.worker import ticker
from pyspark_pgqueue.__main__ import main
from tests.spark.conftest import exported, wait_for_commits
from tests.test_docs import ROOT, blocks, compiled

AIRFLOW, DAGSTER, CONSUMER = blocks(ROOT / "docs" / "exports.md")


def importable(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> ModuleType:
    """Make a module with these members importable, and its packages."""
    parts = name.split(".")
    for end in range(1, len(parts)):
        package = ".".join(parts[:end])
        monkeypatch.setitem(sys.modules, package, sys.modules.get(package) or ModuleType(package))
    module = ModuleType(name)
    module.__dict__.update(members)
    monkeypatch.setitem(sys.modules, name, module)
    return module


def run(block: Any) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "example"}
    exec(compiled(block), names)
    return names


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    operator = MagicMock()
    importable(monkeypatch, "airflow.providers.standard.operators.bash", BashOperator=operator)
    importable(monkeypatch, "airflow.sdk", DAG=MagicMock())

    def command() -> list[str]:
        run(AIRFLOW)
        return shlex.split(operator.call_args.kwargs["bash_command"])

    return command


@pytest.fixture
def dagster(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    dg = importable(monkeypatch, "dagster", asset=lambda **_: lambda function: function)
    for name in ("RetryPolicy", "ScheduleDefinition", "Definitions"):
        setattr(dg, name, MagicMock())

    def command() -> list[str]:
        called: list[list[str]] = []
        with monkeypatch.context() as patch:
            patch.setattr(subprocess, "run", lambda words, check: called.append(words))
            run(DAGSTER)["lake"]()
        return called[0]

    return command


@pytest.mark.parametrize("orchestrator", ["airflow", "dagster"])
def test_orchestrator_calls_the_export(
    orchestrator: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    spark: Any,
    url: str,
    lake: str,
    finish: Callable[..., list[int]],
) -> None:
    ids = finish("orders", 3)
    wait_for_commits(url)
    monkeypatch.setenv("PGQUEUE_URL", url)

    python, dash, module, *arguments = request.getfixturevalue(orchestrator)()
    given = [lake if word.startswith("s3://") else word for word in arguments]

    assert (python, dash, module) == ("python", "-m", "pyspark_pgqueue")
    assert main(given) == 0
    assert exported(spark, lake) == ids
    assert Lake.objects.get().holds_retention


def test_consumer_of_a_schedule_exports_in_a_thread(
    own_handlers: None,
    monkeypatch: pytest.MonkeyPatch,
    spark: Any,
    url: str,
    lake: str,
    finish: Callable[..., list[int]],
) -> None:
    ids = finish("orders", 3)
    wait_for_commits(url)
    Message.objects.create_queue("exports")

    export = run(CONSUMER._replace(text=CONSUMER.text.replace("/data/lake", lake)))["export"]

    assert ticker.synchronize("default") == 1
    # As in a consumer's worker.
    with ThreadPoolExecutor(1) as workers:
        workers.submit(export, None).result()
    assert exported(spark, lake) == ids
