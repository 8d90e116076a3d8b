"""graphile-worker, on Node.js: a contestant from outside Python.

The default is its command line: one job at a time. Tuned, it uses the configuration of "Quick
stats" on https://worker.graphile.org/docs/performance, as its own performance test does: for
concurrency N, a pool of N + 1. npm installs it into ``benchmarks/.npm``.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from benchmarks import database, peers

VERSION = "0.17.3"
HERE = Path(__file__).parent
SCRATCH = HERE.parents[1] / ".npm"
PROGRAM = SCRATCH / "node_modules" / ".bin" / "graphile-worker"
CONCURRENCY = 24
CHUNK = 10_000


def where() -> dict[str, str]:
    found = {name: str(value) for name, value in database.parameters().items() if value != ""}
    names = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "dbname": "PGDATABASE"}
    names["password"] = "PGPASSWORD"
    return {names[name]: value for name, value in found.items()}


class Worker(peers.Worker):
    default = "`graphile-worker`: one job at a time"
    tuned = (
        f"`concurrentJobs: {CONCURRENCY}`, `localQueue: {{size: 500}}`, "
        "`completeJobBatchDelay: 0`; `add_jobs`"
    )
    documentation = "https://worker.graphile.org/docs/performance"
    table = "graphile_worker._private_jobs"

    def install(self) -> None:
        wanted = json.dumps({"dependencies": {"graphile-worker": VERSION}})
        manifest = SCRATCH / "package.json"
        if not PROGRAM.exists() or manifest.read_text() != wanted:
            SCRATCH.mkdir(exist_ok=True)
            manifest.write_text(wanted)
            run(["npm", "install", "--no-audit", "--no-fund", "--prefix", str(SCRATCH)])
        run([str(PROGRAM), "--schema-only", *self.connecting()], env=self.environment())

    def connecting(self) -> list[str]:
        # The other parameters are in libpq's environment variables.
        return ["--connection", f"postgres:///{database.parameters()['dbname']}"]

    def command(self, mode: str, concurrency: int | None = None) -> list[str]:
        self.concurrency = concurrency or CONCURRENCY
        config = HERE / ("tuned.config.js" if self.is_tuned else "default.config.js")
        return [str(PROGRAM), "--config", str(config), *self.connecting()]

    def environment(self) -> dict[str, str]:
        concurrency = getattr(self, "concurrency", CONCURRENCY)
        return {**os.environ, **where(), "BENCHMARK_CONCURRENCY": str(concurrency)}

    def enqueue(self, body: dict[str, Any], mode: str) -> None:
        self.connection.execute(
            "SELECT graphile_worker.add_job(%s, %s::json)", [mode, json.dumps(body)]
        )

    def enqueue_many(self, bodies: list[dict[str, Any]], mode: str) -> None:
        for start in range(0, len(bodies), CHUNK):
            jobs = [{"identifier": mode, "payload": b} for b in bodies[start : start + CHUNK]]
            self.connection.execute(
                "SELECT 1 FROM graphile_worker.add_jobs(ARRAY("
                "SELECT json_populate_recordset(null::graphile_worker.job_spec, %s::json)))",
                [json.dumps(jobs)],
            )

    def remaining(self, mode: str) -> int:
        return self.count(f"SELECT count(*) FROM {self.table}")

    def clear(self, mode: str) -> None:
        self.connection.execute(f"TRUNCATE {self.table}")


def run(command: list[str], **options: Any) -> None:
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:3])} failed: {(done.stderr or done.stdout)[-500:]}")
