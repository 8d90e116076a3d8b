"""Measure the queue beside its peers, and this tree beside another one.

    python -m benchmarks list                            the scenarios, by topic
    python -m benchmarks run                             all of them: hours
    python -m benchmarks run peers read-1 --size quick   some of them, briefly
    python -m benchmarks run load                        a fixed load on four systems, as it grows
    python -m benchmarks page benchmarks/results/load.json    its results, in the docs
    python -m benchmarks turns ../before read-1          this tree and another one, in turn

Without DATABASE_URL, the server is a temporary one.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import run, turns
from benchmarks.load import page


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    # SIGTERM ends a command like Ctrl-C, so that the server is stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return options.command(options)
    except KeyboardInterrupt:
        return 130


def parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    whole = argparse.ArgumentParser(
        "python -m benchmarks", description=__doc__, formatter_class=raw
    )
    commands = whole.add_subparsers(required=True, metavar="COMMAND")

    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--size", choices=["quick", "normal", "full"], default="normal")
    common.add_argument(
        "--rounds", type=int, help="number of rounds (default: 3; quick: 2; turns: 7)"
    )
    common.add_argument(
        "--payloads",
        type=Path,
        default=os.environ.get("PGQUEUE_WEBHOOKS"),
        help="real webhooks: JSON lines {'event': …, 'payload': …}, plain or gzipped",
    )
    common.add_argument("--name", help="name of the file in benchmarks/results")

    for module, title in ((run, "run scenarios"), (turns, "compare two trees")):
        added = commands.add_parser(
            module.__name__.rpartition(".")[2],
            help=title,
            description=module.__doc__,
            formatter_class=raw,
            parents=[common],
        )
        module.add_arguments(added)
        added.set_defaults(command=module.command)
    paging = commands.add_parser("page", help="write the results of `run load` into the docs")
    page.add_arguments(paging)
    paging.set_defaults(command=page.command)
    listing = commands.add_parser("list", help="list the scenarios")
    listing.set_defaults(command=run.print_scenarios)
    return whole


if __name__ == "__main__":
    sys.exit(main())
