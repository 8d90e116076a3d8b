"""Write a release's software bill of materials: CycloneDX, in JSON.

    python3 tools/sbom.py dist/sbom.json
    python3 tools/sbom.py dist/sbom-spark.json --extra spark

Lists the package and everything installed with it, in the versions of constraints.txt, each with
its hash. Needs cyclonedx-bom, and asks pip's index what it would install.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def requirements(extras: list[str]) -> list[str]:
    """A requirement with version and hash for each package of an installation."""
    project = f"{ROOT}[{','.join(extras)}]" if extras else str(ROOT)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [*pip, "--dry-run", "--ignore-installed", "--report", str(report)]
        command += ["--constraint", str(ROOT / "constraints.txt"), project]
        subprocess.run(command, check=True)
        installed = json.loads(report.read_text())["install"]
    return sorted(
        f"{item['metadata']['name']}=={item['metadata']['version']} "
        f"--hash=sha256:{item['download_info']['archive_info']['hashes']['sha256']}"
        for item in installed
        if "archive_info" in item["download_info"]
    )


def write(output: Path, extras: list[str]) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    program = [sys.executable, "-m", "cyclonedx_py", "requirements", "-"]
    options = ["--pyproject", str(ROOT / "pyproject.toml"), "--mc-type", "library"]
    # Reproducible: the same input gives the same file.
    options += ["--output-reproducible", "--output-format", "JSON", "--validate"]
    subprocess.run(
        [*program, *options, "--output-file", str(output)],
        input="\n".join(requirements(extras)),
        text=True,
        check=True,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", type=Path)
    parser.add_argument("--extra", action="append", default=[], help="repeatable")
    options = parser.parse_args()
    write(options.output, options.extra)
