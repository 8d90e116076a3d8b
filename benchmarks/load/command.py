"""`python -m benchmarks run load`: measures all cells, and saves the results after each."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import database, payloads, report
from benchmarks.load import page, plan
from benchmarks.load.observe import CLIENTS, Observer, pin
from benchmarks.machine import Watch
from benchmarks.payloads import Payload

__all__ = ["TITLE", "command"]

TITLE = "A fixed load, as connections, backlog and time grow (options: run --help)"
RESULTS = Path(__file__).parent.parent / "results"
UNFINISHED = RESULTS / "load-unfinished.json"
#: How many bytes of disk one byte of a backlog takes, with the log.
GROWTH, ROW = 3, 500


def command(options: argparse.Namespace) -> int:
    plan.complete(options)
    bodies = sent(options)
    cells = [cell for cell in plan.cells(options) if cell.body in bodies]
    if not cells:
        sys.exit("Nothing to measure: --bodies webhooks needs --payloads.")
    started, watch = time.monotonic(), Watch()
    watch.look()
    with database.database():
        import django

        django.setup()
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        observer = Observer()
        pinned = observer.pin() and pin([os.getpid()], CLIENTS)
        if not pinned:
            print("Server and clients share the cores: they cannot be pinned here.")
        results: dict[str, Any] = {
            "about": {**report.about(options, list(bodies.values())), "pinned": pinned},
            "options": {
                name: getattr(options, name)
                for name in ("seconds", "connections", "backlog", "rate", "listeners", "cross")
            },
            "planned": len(cells),
            "cells": [],
        }
        runner = Runner(observer, watch, options, bodies)
        try:
            for number, cell in enumerate(cells, 1):
                left = time_left(number - 1, len(cells), started)
                print(f"[{number}/{len(cells)}] {cell}{left}", flush=True)
                results["cells"].append(runner.run(cell))
                print(f"    {page.line(results['cells'][-1])}", flush=True)
                about = results["about"]
                about["machine"] |= report.of_machine(watch.machine)
                about["disturbed"] = watch.machine.disturbances()
                about["minutes"] = round((time.monotonic() - started) / 60, 1)
                save(results, UNFINISHED)
        except KeyboardInterrupt:
            print(f"\nInterrupted. What was measured is in {UNFINISHED}")
            raise
        finally:
            runner.close()
            observer.close()
    busy = "-busy" if results["about"]["disturbed"] else ""
    name = options.name or ("load" if options.size == "normal" else f"load-{options.size}") + busy
    target = RESULTS / f"{name}.json"
    save(results, target)
    UNFINISHED.unlink(missing_ok=True)
    page.write_results(results, target.with_suffix(".md"))
    if busy:
        print(f"Do not quote these figures: {'; '.join(results['about']['disturbed'])}.")
    print(f"{results['about']['minutes']} minutes. Saved as {target}")
    return 0


def sent(options: argparse.Namespace) -> dict[str, Payload]:
    """The payloads by name."""
    found = {payloads.SMALL: payloads.small()}
    if options.payloads:
        found["webhooks"] = payloads.webhooks(Path(options.payloads))
    elif "webhooks" in options.bodies:
        print("Skipping the real webhooks: no --payloads given.")
    return {name: found[name] for name in options.bodies if name in found}


def time_left(done: int, planned: int, started: float) -> str:
    if not done:
        return ""
    seconds = (time.monotonic() - started) / done * (planned - done)
    return f"; about {seconds / 60:.0f} minutes left"


def save(results: dict[str, Any], target: Path) -> None:
    """In one step, so that a killed run leaves the results before."""
    results["partial"] = len(results["cells"]) < results["planned"]
    new = target.with_suffix(".new")
    new.write_text(json.dumps(results, indent=1) + "\n")
    new.replace(target)


class Runner:
    """Runs cells on one server. Keeps a backlog for the next cell with the same."""

    def __init__(
        self, observer: Observer, watch: Watch, options: argparse.Namespace,
        bodies: dict[str, Payload],
    ) -> None:  # fmt: skip
        self.observer, self.watch, self.options, self.bodies = observer, watch, options, bodies
        self.systems: dict[str, Any] = {}
        self.unable: dict[str, str] = {}
        #: Each system's body and backlog.
        self.filled: dict[str, tuple[str, int]] = {}
        self.stored = ""
        self.bytes = 0

    def run(self, cell: plan.Cell) -> dict[str, Any]:
        """A cell's results, or why it has none."""
        found: dict[str, Any] = asdict(cell)
        try:
            system = self.prepare(cell)
            found["loadavg"] = round(os.getloadavg()[0], 2)
            self.watch.look()
            from benchmarks.load.measure import measure

            options = self.options
            how = {"rate": options.rate, "seconds": options.seconds}
            payload = self.bodies[cell.body]
            found |= measure(
                cell, system, payload, self.observer, **how, listeners=options.listeners
            )
        except Exception as error:
            reason = (str(error).strip() or repr(error)).splitlines()[-1]
            found["failed"] = reason
            # What it left is unknown.
            self.filled.pop(cell.system, None)
        return found

    def prepare(self, cell: plan.Cell) -> Any:
        """The system with the cell's backlog and nothing else."""
        from benchmarks.load.systems import open_system, store_bodies

        if reason := self.unable.get(cell.system):
            raise RuntimeError(reason)
        if cell.system not in self.systems:
            try:
                self.systems[cell.system] = open_system(cell.system)
            except Exception as error:
                self.unable[cell.system] = str(error).strip() or repr(error)
                raise
        if self.stored != cell.body:
            for label, system in self.systems.items():
                system.clear()
                self.filled.pop(label, None)
            self.bytes = store_bodies(self.observer.connection, self.bodies[cell.body])
            self.stored = cell.body
        system = self.systems[cell.system]
        wanted = cell.body, cell.backlog
        if not cell.backlog or self.filled.get(cell.system) != wanted:
            needed = cell.backlog * (self.bytes * GROWTH + ROW)
            free = shutil.disk_usage(tempfile.gettempdir()).free
            if needed > free:
                raise RuntimeError(
                    f"the backlog needs {needed / 1e9:.0f} GB, and {free / 1e9:.0f} are free"
                )
            system.clear()
            system.fill(cell.backlog, lambda text: print(f"    {text}", flush=True))
            self.filled[cell.system] = wanted
        # So that autovacuum has nothing to do.
        self.observer.connection.execute("VACUUM ANALYZE")
        return system

    def close(self) -> None:
        for system in self.systems.values():
            system.close()
