"""Run the pipeline on each kind of cluster, and print the table."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import django
from django.core.management import call_command

from django_pgqueue.embedded.server import EmbeddedServer
from pyspark_pgqueue import java
from tests.spark.clusters.story import KINDS, play

HEAD = "| cluster | check | rows sent | arrived | twice | kills |\n|---|---|---:|---:|---:|---:|"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", default=KINDS, metavar="kind", help=", ".join(KINDS))
    kinds = parser.parse_args().kinds
    java.check()
    # A short path, since the path of a socket is limited.
    folder = Path(tempfile.mkdtemp(prefix="pgqueue-clusters-"))
    server = EmbeddedServer(folder / "postgres", settings={"shared_buffers": "64MB"})
    server.start()
    try:
        os.environ |= {"DJANGO_SETTINGS_MODULE": "tests.settings", "DATABASE_URL": server.url()}
        django.setup()
        call_command("migrate", verbosity=0)
        print(HEAD)
        whole = [show(kind, server.url(), folder / kind) for kind in kinds]
        return 0 if all(whole) else 1
    finally:
        server.stop()
        for each in (folder, server.home):
            shutil.rmtree(each, ignore_errors=True)


def show(kind: str, url: str, folder: Path) -> bool:
    """Print one kind's rows; returns whether every message arrived exactly once."""
    started = time.monotonic()
    outcomes = play(kind, url, folder)
    for each in outcomes:
        numbers = f"{each.sent:,} | {each.arrived:,} | {each.twice:,} | {each.kills}"
        print(f"| {kind} | {each.check} | {numbers} |", flush=True)
    print(f"{kind}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return all(each.whole for each in outcomes)


if __name__ == "__main__":
    sys.exit(main())
