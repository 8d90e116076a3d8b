"""Write constraints.txt: the versions that pip resolves today, on each given Python.

    python3 tools/pin.py python3.10 python3.11 python3.12 python3.13

Resolves the project with its test, lint and Spark requirements on each interpreter, and merges the
results into one file with markers. Respects pip's configuration; writes no index into the file.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = """\
# Versions that are known to work together; written by tools/pin.py, read by run.py and CI.
"""


def resolve(python: str, folder: Path) -> tuple[str, dict[str, str]]:
    """Return an interpreter's version, as 3.12, and the versions that pip resolves on it."""
    venv = folder / python.replace("/", "_")
    subprocess.run([python, "-m", "venv", venv], check=True)
    pip = [str(venv / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--upgrade", "pip"], check=True)
    report = folder / "report.json"
    command = [*pip, "install", "--dry-run", "--ignore-installed", "--report", str(report)]
    command += ["pip", ".[spark,prometheus,opentelemetry]", "--group", "dev", "--group", "connect"]
    subprocess.run(command, cwd=ROOT, check=True)
    answer = json.loads(report.read_text())
    versions = {
        item["metadata"]["name"].lower().replace("_", "-"): item["metadata"]["version"]
        for item in answer["install"]
        if item["download_info"].get("dir_info") is None
    }
    return answer["environment"]["python_version"], versions


def merge(resolved: dict[str, dict[str, str]]) -> list[str]:
    """Merge into one line per package, or per range of Pythons with the same version."""
    pythons = sorted(resolved, key=lambda version: int(version.partition(".")[2]))
    lines = []
    for name in sorted({name for versions in resolved.values() for name in versions}):
        runs: list[tuple[str | None, list[str]]] = []
        for python in pythons:
            version = resolved[python].get(name)
            if runs and runs[-1][0] == version:
                runs[-1][1].append(python)
            else:
                runs.append((version, [python]))
        for version, run in runs:
            if version is None:
                continue
            limits = []
            if run[0] != pythons[0]:
                limits.append(f'python_version >= "{run[0]}"')
            if run[-1] != pythons[-1]:
                after = pythons[pythons.index(run[-1]) + 1]
                limits.append(f'python_version < "{after}"')
            marker = f" ; {' and '.join(limits)}" if limits else ""
            lines.append(f"{name}=={version}{marker}")
    return lines


def main(pythons: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        resolved = dict(resolve(python, Path(folder)) for python in pythons)
    (ROOT / "constraints.txt").write_text(HEADER + "\n".join(merge(resolved)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:] or [sys.executable])
