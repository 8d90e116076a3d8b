"""Run chaos tests for a given time and several seeds, and print the totals.

    python -m tests.acceptance.chaos                         # five seeds, six minutes each
    python -m tests.acceptance.chaos --minutes 1 --seeds 7
    python -m tests.acceptance.chaos --only limits           # tests with this in their names

For each seed the runs of ``test_faults.py`` repeat until its time is up; the last run ends by
itself. Exits with 1 when a run fails, and prints its output.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
RUNS = "tests/acceptance/chaos/test_faults.py"
COLUMNS = ["messages", "faults", "redelivered", "lost", "phantoms", "twice"]
COLUMNS += ["twice in a transaction"]


def run(seed: int, until: float, counts: Path, only: str) -> tuple[int, str]:
    """Start runs until the time is up; returns the number that failed, and the output."""
    options = ["-q", "-p", "no:cacheprovider", "--tb=short", "-k", only]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", RUNS, *options],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "CHAOS_SEED": str(seed),
            "CHAOS_UNTIL": str(until),
            "CHAOS_COUNTS": str(counts),
        },
        capture_output=True,
        text=True,
    )
    found = re.search(r"(\d+) failed", ended.stdout)
    # No test failed: all were skipped, which is no failure, or pytest itself failed.
    failed = int(found[1]) if found else int(ended.returncode != 0)
    return failed, ended.stdout + ended.stderr


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.acceptance.chaos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=6, help="for each seed (default: 6)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--only", default="", help="tests to run, as pytest's -k (default: all)")
    options = parser.parse_args()
    print("| seed | runs | failed | minutes |", " | ".join(COLUMNS), "|")
    print("|---|" + "---:|" * (len(COLUMNS) + 3), flush=True)
    all_failed = 0
    for seed in options.seeds:
        draw, began = random.Random(seed), time.time()
        until = began + 60 * options.minutes
        failed = 0
        with tempfile.TemporaryDirectory(prefix="chaos-counts-") as folder:
            counts = Path(folder) / "counts"
            counts.touch()
            while time.time() < until:
                wrong, output = run(draw.randrange(10**6), until, counts, options.only)
                failed += wrong
                if wrong:
                    print(output, file=sys.stderr, flush=True)
            runs = [json.loads(line) for line in counts.read_text().splitlines()]
        sums: Counter[str] = Counter()
        for each in runs:
            sums.update(each)
        cells = [seed, len(runs), failed, f"{(time.time() - began) / 60:.1f}"]
        print(
            "|", " | ".join(map(str, [*cells, *(sums[name] for name in COLUMNS)])), "|", flush=True
        )
        all_failed += failed
    return 1 if all_failed else 0


if __name__ == "__main__":
    sys.exit(main())
