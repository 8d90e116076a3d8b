#!/usr/bin/env python3
"""Run the project from a fresh clone; everything it needs goes into .venv.

    python3 run.py demo [arguments]     the example project, with a PostgreSQL of its own
    python3 run.py test [arguments]     the test suite, in two processes; arguments are pytest's
    python3 run.py test --quick         the tests to run while writing, in less than a minute
    python3 run.py test --sql           the tests that depend on the version of PostgreSQL
    python3 run.py test --all           every test: also slow ones, acceptance, chaos and Spark
    python3 run.py test --postgres BIN  tests on the PostgreSQL in the bin directory BIN
    python3 run.py check                linters, types, import layers, migrations, documentation
    python3 run.py install              what all commands need, in advance
    python3 run.py docs                 the documentation as a site, in docs/_build/html
    python3 run.py docs --linkcheck     a check of the documentation's links
    python3 run.py coverage [arguments] like test, and measures the coverage of lines and branches

It uses the newest suitable Python that it finds; PYTHON=/path/to/python chooses another.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
REMOVED = ROOT / ".venv-removed"
MADE_BY_US = VENV / "made-by-run.py"
STAMP = VENV / "installed.json"
OLDEST, NEWEST = (3, 10), (3, 14)
USUAL = "not slow and not acceptance and not spark"
# Two processes, since most tests mostly wait. One file stays in one process, since its tests share
# fixtures.
SIDE_BY_SIDE = ["-n2", "--dist=loadfile"]
QUICK = ["tests/engine", "tests/queues", "tests/tables", "--ignore=tests/engine/plans"]
SQL = [
    f"tests/{part}"
    for part in ("ddl", "engine", "maintenance", "migrations", "pgmq", "queues", "tables")
]
SQL += ["tests/admin/test_processes.py", "tests/admin/test_queries.py"]
NEEDS = {"demo": ["--group=example"], "test": ["--group=test"]}
NEEDS["check"] = [*NEEDS["test"], "--group=lint", "--group=docs"]
NEEDS["docs"] = ["--group=docs"]
NEEDS["coverage"] = [*NEEDS["test"], "--group=coverage"]
NEEDS["install"] = sorted({need for needs in NEEDS.values() for need in needs})


def main(arguments):
    command = arguments[0] if arguments else ""
    if command not in NEEDS:
        print(__doc__.strip())
        return 0 if command in {"-h", "--help"} else 2
    needs = list(NEEDS[command])
    if command in {"test", "coverage", "install"} and shutil.which("java"):
        needs.append("--extra=spark")
    prepare(needs)
    if command == "install":
        return 0
    commands = {"demo": demo, "test": test, "check": check, "docs": docs, "coverage": coverage}
    return commands[command](arguments[1:])


# The commands


def demo(arguments):
    become("example_project/manage.py", "demo", *arguments)


def test(arguments):
    choose_postgres(arguments)
    become("-m", "pytest", *selected(arguments))


def choose_postgres(arguments):
    if "--postgres" in arguments:
        position = arguments.index("--postgres")
        if position + 1 == len(arguments):
            stop("--postgres needs the bin directory of a PostgreSQL installation.")
        os.environ["POSTGRES_BIN_DIR"] = arguments[position + 1]
        del arguments[position : position + 2]


def selected(arguments):
    """pytest's arguments. Tests named by path or marker run even if they are slow."""
    rest = [argument for argument in arguments if argument not in {"--all", "--quick", "--sql"}]
    if "--quick" in arguments:
        return [*rest, "-m", f"{USUAL} and not commits", *QUICK]
    if "--sql" in arguments:
        return [*rest, "-m", USUAL, *SQL]
    named = any(a.startswith("-m") or (ROOT / a.split("::")[0]).exists() for a in rest)
    if "--all" in arguments or named:
        return rest
    say("Running without the tests marked slow, acceptance or spark; --all includes them.")
    return [*SIDE_BY_SIDE, *rest, "-m", USUAL]


def coverage(arguments):
    """Run the tests with branch coverage, subprocesses included. Ends with modules below 90 %."""
    choose_postgres(arguments)
    run("-m", "coverage", "erase")
    failed = run("-m", "coverage", "run", "-m", "pytest", *selected(arguments))
    run("-m", "coverage", "combine", "--quiet")
    run("-m", "coverage", "report")
    return failed


def docs(arguments):
    if "--linkcheck" in arguments:
        return run(*sphinx("linkcheck"))
    failed = run(*sphinx("html"))
    say("Failed." if failed else f"The site is in {ROOT / 'docs/_build/html/index.html'}.")
    return failed


def sphinx(builder):
    built = f"docs/_build/{builder}"
    return ["-m", "sphinx", "-q", "-W", "--keep-going", "-b", builder, "docs", built]


def check(arguments):
    manage = "example_project/manage.py"
    checks = {
        "ruff": ["-m", "ruff", "check"],
        "ruff format": ["-m", "ruff", "format", "--check"],
        "mypy": ["-m", "mypy"],
        "types of public names": ["-m", "tools.public_names"],
        "import layers": ["-c", "from importlinter.cli import lint_imports_command as c; c()"],
        "migrations": [manage, "makemigrations", "--check", "--dry-run"],
        "documentation": sphinx("html"),
    }
    failed = []
    for name, command in checks.items():
        say(f"Checking: {name}")
        if run(*command):
            failed.append(name)
    say(f"Failed: {', '.join(failed)}" if failed else "All checks passed.")
    return 1 if failed else 0


def run(*arguments):
    return subprocess.call([str(VENV_PYTHON), *arguments], cwd=str(ROOT), env=environment())


def become(*arguments):
    """Replace this process, so that signals and the exit code are the command's own."""
    os.chdir(str(ROOT))
    os.execve(str(VENV_PYTHON), [str(VENV_PYTHON), *arguments], environment())


def environment():
    found = {name: value for name, value in os.environ.items() if name != "PYTHONHOME"}
    found["VIRTUAL_ENV"] = str(VENV)
    found["PATH"] = os.pathsep.join([str(VENV / "bin"), found.get("PATH", os.defpath)])
    found["PYTHONPATH"] = str(ROOT)
    return found


# The virtual environment


def prepare(needs):
    """Create .venv and install the needs, unless the stamp shows that they are installed."""
    make_venv()
    stamp = read_stamp()
    inputs = hashlib.sha256(
        b"".join((ROOT / name).read_bytes() for name in ("pyproject.toml", "constraints.txt"))
    ).hexdigest()
    installed = stamp.get("needs", []) if stamp.get("inputs") == inputs else []
    if set(needs) <= set(installed):
        return
    needs = sorted({*needs, *stamp.get("needs", [])})
    STAMP.unlink() if STAMP.exists() else None

    say("Installing what the project needs into .venv (a minute or two the first time) ...")
    started = time.monotonic()
    extras = ",".join(need[len("--extra=") :] for need in needs if need.startswith("--extra="))
    project = f".[{extras}]" if extras else "."
    groups = [need for need in needs if need.startswith("--group=")]
    pip("install", "pip")  # older versions do not support dependency groups
    pip("install", "--editable", project, *groups)
    # Written last, so that an interrupted installation is repeated.
    STAMP.write_text(json.dumps({"inputs": inputs, "needs": needs}))
    say(f"Installed in {time.monotonic() - started:.0f} seconds.")


def make_venv():
    wanted = os.environ.get("PYTHON")
    present = probe(str(VENV_PYTHON)) if VENV_PYTHON.exists() else None
    if present and not wanted and fits(present) and (STAMP.exists() or not MADE_BY_US.exists()):
        return
    if present and wanted and STAMP.exists() and present["version"] == probe_or_stop(wanted):
        return
    if VENV.exists() and any(VENV.iterdir()) and not MADE_BY_US.exists():
        stop(f"{VENV} is not usable and was not made by run.py. Remove it, then try again.")
    python = find_python(wanted)
    say(f"Making .venv with Python {dotted(python['version'])} ({python['path']}) ...")
    shutil.rmtree(str(REMOVED), ignore_errors=True)
    if VENV.exists():
        VENV.rename(REMOVED)  # renamed at once: half a removal would leave an unrecognisable folder
        shutil.rmtree(str(REMOVED), ignore_errors=True)
    VENV.mkdir()
    MADE_BY_US.touch()
    if subprocess.call([python["path"], "-m", "venv", str(VENV)]):
        stop(f"{python['path']} could not make a virtual environment in {VENV}.")


def pip(*arguments):
    command = [str(VENV_PYTHON), "-m", "pip", "-qq", "--disable-pip-version-check"]
    command += [*arguments, "--constraint", "constraints.txt"]
    if subprocess.call(command, cwd=str(ROOT), env=environment()):
        stop("pip failed; its error is above. Run the same command to try again.")


def read_stamp():
    try:
        return json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}


# The interpreter


def find_python(wanted):
    if wanted:
        candidates = [wanted]
    else:
        names = [f"python3.{minor}" for minor in range(NEWEST[1], OLDEST[1] - 1, -1)]
        pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
        candidates = [sys.executable, *names, "python3", "/usr/bin/python3"]
        candidates += map(str, pyenv.glob("versions/*/bin/python"))
    found = [python for python in map(probe, candidates) if python and fits(python)]
    # Stable, so the interpreter that runs this comes first.
    found.sort(key=lambda python: python["version"], reverse=True)
    complete = [python for python in found if python["ensurepip"]]
    if complete:
        return complete[0]
    if not found:
        stop(
            f"This project runs on Python {dotted(OLDEST)} to {dotted(NEWEST)}, and none was "
            f"found ({', '.join(candidates)}). Install one, for example with pyenv or uv, or "
            "name it: PYTHON=/path/to/python python3 run.py ..."
        )
    install_venv_module(found[0])
    return found[0]


def install_venv_module(python):
    """Install the venv module, which Debian packages separately from Python."""
    version = dotted(python["version"])
    system = os.path.realpath("/usr/bin/python3") == os.path.realpath(python["path"])
    package = "python3-venv" if system else f"python{version}-venv"
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        stop(
            f"Python {version} ({python['path']}) lacks the module that installs pip. "
            f"On Debian or Ubuntu: sudo apt-get install -y {package}"
        )
    say(f"Installing Debian's {package}, which Python {version} lacks ...")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.call(["apt-get", "update", "-qq"], env=quiet)
    if subprocess.call(["apt-get", "install", "-y", "-qq", package], env=quiet):
        stop(f"apt-get could not install {package}; its error is above.")


def probe(python):
    """The version and features of an interpreter, or None if it does not run."""
    question = (
        "import importlib.util as u, json, sys; print(json.dumps({"
        "'path': sys.executable, 'version': sys.version_info[:2],"
        "'ensurepip': bool(u.find_spec('venv') and u.find_spec('ensurepip'))}))"
    )
    try:
        output = subprocess.check_output(
            [python, "-I", "-c", question], stderr=subprocess.DEVNULL, timeout=30
        )
        return json.loads(output.decode())
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def probe_or_stop(python):
    found = probe(python)
    if not found:
        stop(f"PYTHON={python} does not run. Set it to the path of a Python interpreter.")
    return found["version"]


def fits(python):
    return OLDEST <= tuple(python["version"]) <= NEWEST


def dotted(version):
    return ".".join(map(str, version))


def say(words):
    print(words, flush=True)


def stop(words):
    sys.exit(words)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit("\nInterrupted. Run the same command to go on.")
