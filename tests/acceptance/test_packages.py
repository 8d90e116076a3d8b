"""The packages as users get them: guides run with the wheel, and tests with the sdist.

A guide is played in an empty directory: blocks that name a file are written to it, indented lines
are run as commands, and sessions are checked against the output shown.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import uuid
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from pathlib import Path
from typing import Any

import psycopg
import pytest

pytest.importorskip("hatchling", reason="builds the packages with hatchling")

ROOT = Path(__file__).resolve().parent.parent.parent
README = ROOT / "README.md"
QUICKSTART, TUTORIAL = ROOT / "docs" / "quickstart.md", ROOT / "docs" / "tutorial.md"
#: Seconds until a command counts as stuck.
PATIENCE = 300

pytestmark = [pytest.mark.acceptance, pytest.mark.slow, pytest.mark.django_db(transaction=True)]

# A session is a process of its own that keeps its names, like a reader's shell.
SHELL = """
import doctest, os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "mysite.settings"
sys.path.insert(0, os.getcwd())
import django
django.setup()
names = {}
for page in iter(sys.stdin.readline, ""):
    text = page.encode().decode("unicode_escape")
    test = doctest.DocTestParser().get_doctest(text, names, "session", None, 0)
    test.globs = names
    said = []
    failed, _ = doctest.DocTestRunner().run(test, out=said.append, clear_globs=False)
    print(ascii("".join(said)) if failed else "good", flush=True)
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel and the source distribution; returns their directory."""
    directory = tmp_path_factory.mktemp("packages")
    run([sys.executable, "-m", "hatchling", "build", "-d", str(directory)], ROOT)
    return directory


@pytest.fixture(scope="module")
def python(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel, and with this environment's other packages."""
    environment = tmp_path_factory.mktemp("environment")
    run([sys.executable, "-m", "venv", "--without-pip", str(environment)], ROOT)
    [wheel] = packages.glob("*.whl")
    [site] = environment.glob("lib/python*/site-packages")
    run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index",
         "--no-compile", "--target", str(site), str(wheel)],
        ROOT,
    )  # fmt: skip
    # Their .pth files are not processed, so that the working tree is not importable.
    others = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    (site / "others.pth").write_text("\n".join(others))
    return environment / "bin" / "python"


@pytest.fixture
def server(reachable: dict[str, dict[str, Any]]) -> Iterator[dict[str, str]]:
    """The libpq variables for the tests' server, and a database name."""
    known = reachable["default"]
    name = f"mysite_{uuid.uuid4().hex[:8]}"
    variables = {
        "PGHOST": str(known["HOST"] or ""),
        "PGPORT": str(known["PORT"] or ""),
        "PGUSER": str(known["USER"] or ""),
        "PGPASSWORD": str(known["PASSWORD"] or ""),
        "PGDATABASE": str(known["NAME"]),
    }
    variables = {key: value for key, value in variables.items() if value}
    yield {**variables, "MYSITE": name}
    with psycopg.connect(_conninfo(variables), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        connection.execute(f"DROP DATABASE IF EXISTS test_{name} WITH (FORCE)")


def _conninfo(variables: dict[str, str]) -> str:
    words = {"PGHOST": "host", "PGPORT": "port", "PGUSER": "user", "PGPASSWORD": "password"}
    given = {word: variables[key] for key, word in words.items() if key in variables}
    return psycopg.conninfo.make_conninfo(dbname=variables["PGDATABASE"], **given)


def run(command: list[str], directory: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, cwd=directory, env=env, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def clean_environment() -> dict[str, str]:
    """This process's environment, without variables that lead to the working tree."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("DJANGO", "PYTHON"))}


class Player:
    """Follows a guide's instructions in a directory."""

    def __init__(self, directory: Path, python: Path, server: dict[str, str]) -> None:
        self.directory = directory
        self.python = python
        self.server = server
        self.did: list[str] = []
        self.env = {
            **clean_environment(),
            **server,
            "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        }
        self._shell: subprocess.Popen[str] | None = None

    def play(self, page: Path) -> None:
        text = page.read_text(encoding="utf-8")
        for found in re.finditer(
            r"^```python\n(.*?)^```$|^    (\S[^\n]*)$", text, re.MULTILINE | re.DOTALL
        ):
            if found[1] is None:
                self.command(found[2])
            elif found[1].startswith(">>>"):
                self.session(found[1])
            else:
                self.file(found[1])

    def file(self, text: str) -> None:
        comment = re.match(r"# (\S+\.py)(, at the end)?\n", text)
        assert comment, f"a block without the name of its file:\n{text}"
        path = self.directory / comment[1]
        before = path.read_text() if comment[2] else ""
        # The guide's database mysite is replaced by this test's.
        path.write_text(before + text.replace('"NAME": "mysite"', f'"NAME": "{self.name}"'))

    @property
    def name(self) -> str:
        return self.server["MYSITE"]

    def command(self, line: str) -> str:
        self.did.append(line)
        words = [word.strip("\"'") for word in re.findall(r'"[^"]*"|\S+', line.partition("  #")[0])]
        if words[:2] == ["pip", "install"] or words[0] == "python3":
            return ""
        if words[0] == "createdb":
            with psycopg.connect(_conninfo(self.server), autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE {self.name}")
            return ""
        if words[-1] == "runconsumer":
            words.append("--drain")
        if words[0] == "django-admin":
            words[:1] = ["python", "-m", "django"]
        assert words[0] == "python", line
        return run([str(self.python), *words[1:]], self.directory, self.env)

    def session(self, text: str) -> None:
        self.did.append(text)
        if self._shell is None:
            self._shell = subprocess.Popen(
                [str(self.python), "-c", SHELL],
                cwd=self.directory, env=self.env, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
        assert self._shell.stdin
        assert self._shell.stdout
        self._shell.stdin.write(text.encode("unicode_escape").decode() + "\n")
        self._shell.stdin.flush()
        said = self._shell.stdout.readline().strip()
        assert said == "good", said.encode().decode("unicode_escape")

    def close(self) -> None:
        if self._shell is not None:
            self._shell.communicate(timeout=PATIENCE)


@pytest.fixture
def player(tmp_path: Path, python: Path, server: dict[str, str]) -> Iterator[Player]:
    player = Player(tmp_path, python, server)
    yield player
    player.close()


@pytest.mark.parametrize("page", [README, QUICKSTART], ids=lambda page: page.name)
def test_a_page_runs_from_the_wheel_in_an_empty_directory(page, player):
    player.play(page)

    assert "python manage.py runconsumer" in player.did
    look = "from shop.models import Order; print(Order.objects.get().note)"
    assert player.command(f'python manage.py shell -v 0 -c "{look}"').strip() == "charged"


def test_the_order_service_runs_from_the_wheel(player):
    player.play(TUTORIAL)

    assert player.did.count("python manage.py runconsumer") == 2
    assert "payments.dead" in player.command("python manage.py pgqueue_queues")
    ask = (
        "from django.test import Client; ann = Client(); "
        "ann.login(username='ann', password='change me'); "
        "print(ann.get('/admin/django_pgqueue/queue/').content.decode())"
    )
    assert "payments.dead" in player.command(f'python manage.py shell -v 0 -c "{ask}"')


def test_the_wheel_is_what_the_pages_ran(python, tmp_path):
    ask = [str(python), "-c", "import django_pgqueue; print(django_pgqueue.__file__)"]

    place = run(ask, tmp_path, clean_environment())

    assert place.startswith(str(python.parent.parent))


def test_the_wheel_has_the_package_and_nothing_else(packages):
    [wheel] = packages.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()

    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {
        "django_pgqueue",
        "pyspark_pgqueue",
    }
    for name in ("py.typed", "queues/bound.py", "engine/read/read.sql", "__init__.pyi"):
        assert f"django_pgqueue/{name}" in names
    assert not [name for name in names if name.endswith((".pyc", ".orig")) or "/tests/" in name]


def test_the_package_is_imported_without_settings(python, tmp_path):
    code = "import django_pgqueue, pyspark_pgqueue; print(django_pgqueue.__version__)"

    assert run([str(python), "-c", code], tmp_path, clean_environment()).startswith("0.")


def test_the_wheel_brings_the_pytest_plugin(packages):
    [wheel] = packages.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        [name] = [name for name in files.namelist() if name.endswith("entry_points.txt")]
        told = files.read(name).decode()

    assert "[pytest11]\ndjango_pgqueue.pytest_plugin = django_pgqueue.pytest_plugin" in told


def test_the_source_distribution_runs_its_own_tests(packages, tmp_path):
    [sdist] = packages.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    [source] = tmp_path.iterdir()
    env = {**os.environ, "PYTHONPATH": str(source)}

    collected = run([sys.executable, "-m", "pytest", "--collect-only", "-q"], source, env)
    assert "tests/test_docs.py" in collected
    run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_docs.py",
         "tests/test_exports.py", "tests/test_imports.py", "tests/test_acks.py"],
        source,
        env,
    )  # fmt: skip


def test_links_of_the_description_work_on_a_package_index(packages):
    [wheel] = packages.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        [name] = [name for name in files.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = message_from_bytes(files.read(name))
    description = metadata.get_payload()

    targets = re.findall(r"\[[^\]]*\]\(([^)]+)\)", description)

    assert metadata["Description-Content-Type"] == "text/markdown"
    assert description.startswith("# django_pgqueue\n")
    assert targets
    assert [target for target in targets if not target.startswith("https://")] == []


def test_a_wheel_can_be_built_from_the_source_distribution(packages, tmp_path):
    [sdist] = packages.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    [source] = tmp_path.iterdir()

    run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)], source)

    [first] = packages.glob("*.whl")
    [second] = tmp_path.glob("*.whl")
    assert sorted(zipfile.ZipFile(first).namelist()) == sorted(zipfile.ZipFile(second).namelist())
