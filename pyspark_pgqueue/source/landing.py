"""Reports missing packages where a read or a write is unpickled: on executors.

Spark plans a read or a write without a check of the machines on which it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pyspark import cloudpickle

#: The directory or zip that contains both packages.
_HOME = str(Path(__file__).resolve().parents[2])


def missing() -> list[str]:
    """Return the missing packages. Runs on executors without importing any, not even this one."""
    from importlib.util import find_spec

    needed = ("pyspark_pgqueue", "django_pgqueue", "pyarrow", "adbc_driver_postgresql", "psycopg")
    return [name for name in needed if find_spec(name) is None]


def advice(host: str, missing: Iterable[str]) -> str:
    """The error message for missing packages."""
    names = ", ".join(missing)
    told = f"Executors on {host} lack {names}. "
    if "_pgqueue" in names:
        told += (
            "Ship both packages: python -m zipfile -c pgqueue.zip "
            "$(python -c 'import django_pgqueue as d, pyspark_pgqueue as p; "
            "print(*d.__path__, *p.__path__)'); then spark-submit --py-files pgqueue.zip, or "
            'spark.addArtifacts("pgqueue.zip", pyfile=True). '
        )
    if not all("_pgqueue" in name for name in missing):
        told += (
            "Install the drivers on each machine, or in an environment that you ship with "
            '--archives: pip install pyarrow adbc-driver-postgresql "psycopg[binary]". '
        )
    return told.rstrip()


def _landed(
    payload: bytes, home: str, find_missing: Callable[[], list[str]], told: Callable[..., str]
) -> Any:
    """Unpickle the object. Raises ImportError when a package is missing."""
    import pickle
    import socket
    import sys

    if home not in sys.path:
        sys.path.append(home)
    lacking = find_missing()
    if lacking:
        raise ImportError(told(socket.gethostname(), lacking))
    kind, state = pickle.loads(payload)
    made = kind.__new__(kind)
    made.__dict__.update(state)
    return made


# With this module name, pickle sends the functions' code instead of their names: executors may be
# unable to import them.
for _function in (missing, advice, _landed):
    _function.__module__ = "__main__"


class Landing:
    """Wraps a source, reader or writer, and reports missing packages when Spark unpickles it.

    Unpickling appends the package's directory on the driver to ``sys.path``. The driver's process
    that plans a stream needs this entry: it looks for the files of ``--py-files`` in a directory
    ``streaming_job``, in which Spark puts none (PythonStreamingSourceRunner, as of Spark 4.3).
    """

    def __reduce__(self) -> tuple[Any, ...]:
        payload = cloudpickle.dumps((type(self), self.__dict__))
        return _landed, (payload, _HOME, missing, advice)
