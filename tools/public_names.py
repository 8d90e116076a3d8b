"""The list of public names, which docs/stability.md shows and tests check.

    python -m tools.public_names    # ends with 1 when a public name has no known type

Other names are private: it may change in any version.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

PUBLIC: dict[str, list[str]] = {
    "django_pgqueue": ["Receipt", "State", "asignal", "consumer", "queue", "schedule", "signal"],
    "django_pgqueue.acks": [
        "Ack",
        "AckPolicy",
        "AckPolicyName",
        "Discard",
        "Failure",
        "Nack",
        "Outcome",
        "Reject",
        "Retry",
        "Waiting",
    ],
    "django_pgqueue.audit": ["acting_as"],
    "django_pgqueue.bare": [
        "Deliveries",
        "Delivery",
        "OpenQueue",
        "archive",
        "cancel",
        "delete",
        "fail",
        "open_queue",
        "peek",
        "pop",
        "read",
        "read_grouped",
        "read_grouped_rr",
        "read_with_poll",
        "release",
        "retry",
        "send",
        "send_batch",
        "set_vt",
    ],
    "django_pgqueue.errors": [
        "BatchSealed",
        "ForeignSchema",
        "HandlerTimeout",
        "ImmutableMessage",
        "InvalidArgument",
        "InvalidMessage",
        "InvalidQueueName",
        "LeaseLost",
        "MessageCancelled",
        "MessageExpired",
        "MessageFailed",
        "MessageNotFound",
        "NeverRead",
        "PgQueueError",
        "PositionLost",
        "QueueBusy",
        "QueueConverting",
        "QueueInUse",
        "QueueMismatch",
        "QueueNotFound",
        "ResultNotReady",
        "StepRefused",
        "TablesMissing",
        "TimedOut",
        "TransactionRefused",
        "UntrustedSource",
        "UnusableDatabase",
    ],
    "django_pgqueue.handlers": ["consumer"],
    "django_pgqueue.models": [
        "ArchivedMessage",
        "Attempt",
        "AuditEntry",
        "Batch",
        "Binding",
        "BoundGroup",
        "BoundQueue",
        "ExportRun",
        "GroupSetting",
        "Lake",
        "LiveMessage",
        "Message",
        "Missed",
        "Note",
        "Process",
        "Queue",
        "Rollup",
        "Schedule",
        "Step",
        "UnsentMessage",
        "queue",
    ],
    "django_pgqueue.operations": [
        "AlterQueue",
        "BindTopic",
        "CreateQueue",
        "DropQueue",
        "InstallPGMQ",
        "Subscribe",
        "UnbindTopic",
    ],
    "django_pgqueue.retries": ["Constant", "Exponential", "Linear", "NoRetry", "RetryStrategy"],
    "django_pgqueue.routers": ["QueueRouter"],
    "django_pgqueue.schedules": ["schedule"],
    "django_pgqueue.signals": [
        "announcements_dropped",
        "batch_abandoned",
        "batch_done",
        "batch_failed",
        "bulk_action_ended",
        "consumer_started",
        "consumer_stopped",
        "consumer_stopping",
        "database_failed",
        "database_recovered",
        "error_ignored",
        "leases_extended",
        "leases_lost",
        "leases_rescued",
        "listening_stopped",
        "maintenance_failed",
        "message_finished",
        "message_started",
        "messages_cancelled",
        "messages_completed",
        "messages_discarded",
        "messages_exhausted",
        "messages_expired",
        "messages_failed",
        "messages_fetched",
        "messages_interrupted",
        "messages_lost",
        "messages_released",
        "messages_retried",
        "messages_sending",
        "messages_sent",
        "pool_too_small",
        "queue_maintained",
        "retention_due",
        "schedule_ended",
        "schedule_failed",
    ],
    "django_pgqueue.tasks": [
        "DummyBackend",
        "ImmediateBackend",
        "PgQueueBackend",
        "PgQueueTask",
        "message_of",
        "task",
    ],
    "django_pgqueue.testing": [
        "MakeQueue",
        "assert_enqueued",
        "assert_not_enqueued",
        "captured_messages",
        "drain",
        "eager",
        "make_queues",
        "make_tables",
        "travel",
    ],
    "django_pgqueue.types": [
        *(
            "Delay",
            "Lag",
            "Maintained",
            "Metrics",
            "OnConflict",
            "Receipt",
            "Sent",
            "Settled",
            "State",
        ),
        *("Until", "Wait"),
    ],
    "django_pgqueue.worker.context": ["Context"],
}


def main() -> int:
    wrong = list(unknown())
    for line in wrong:
        print(line)
    count = sum(map(len, PUBLIC.values()))
    print(f"{count} public names, {len(wrong)} mistakes in their types.")
    return 1 if wrong else 0


def unknown() -> Iterator[str]:
    """The public names whose types pyright does not know, according to ``--verifytypes``."""
    homes = tuple(home for module in PUBLIC for home in homes_of(module))
    for symbol in verified("django_pgqueue")["symbols"]:
        name = symbol["name"]
        if not any(f"{name}.".startswith(f"{home}.") for home in homes):
            continue
        for problem in symbol["diagnostics"]:
            if problem["severity"] == "error":
                yield f"{name}: {' '.join(problem['message'].split())}"


def homes_of(module: str) -> Iterator[str]:
    """The names under which pyright reports a public module's names."""
    found = import_module(module)
    for name in PUBLIC[module]:
        value: Any = getattr(found, name)
        yield f"{module}.{name}"
        if hasattr(value, "__qualname__"):
            yield f"{value.__module__}.{value.__qualname__}"


def verified(package: str) -> dict[str, Any]:
    # pyright resolves imports with the first Python on the PATH.
    python = Path(sys.executable)
    path = os.pathsep.join([str(python.parent), os.environ.get("PATH", os.defpath)])
    done = subprocess.run(
        [python, "-m", "pyright", "--ignoreexternal", "--outputjson", "--verifytypes", package],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
    )
    try:
        answer: dict[str, Any] = json.loads(done.stdout)["typeCompleteness"]
    except (ValueError, KeyError):
        raise SystemExit(f"pyright failed:\n{done.stdout}{done.stderr}") from None
    return answer


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    import_module("django").setup()
    raise SystemExit(main())
