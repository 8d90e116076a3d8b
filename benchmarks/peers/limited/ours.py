"""Our limits: settings of the queue. A key is a group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.peers import limited, ours
from benchmarks.peers.limited import CAP, RATE
from django_pgqueue.models import Message


class Worker(limited.Worker, ours.Worker):
    limits = {
        "cap": f"of a group: `create(group_limit={CAP})`",
        "rate": f'of the queue: `create(rate="{RATE}/s", burst=1)`',
    }
    documentation = "docs/limits.md"

    def __init__(self, *, is_tuned: bool = False) -> None:
        super().__init__(is_tuned=is_tuned)
        #: The settings with which :meth:`clear` creates each queue.
        self.settings: dict[str, dict[str, Any]] = {
            "cap": {"group_limit": CAP},
            "rate": {"rate": f"{RATE}/s", "burst": 1},
        }

    def queue(self, mode: str) -> str:
        return f"limits-{mode}"

    def install(self) -> None:
        for mode, settings in self.settings.items():
            Message.objects.create_queue(self.queue(mode), **settings)

    def send(self, mode: str, messages: Sequence[dict[str, Any]]) -> None:
        is_grouped = any(name.startswith("group_") for name in self.settings[mode])
        group = [message["key"] for message in messages] if is_grouped else None
        Message.objects.send_batch(self.queue(mode), list(messages), group=group)

    def clear(self, mode: str) -> None:
        Message.objects.drop_queue(self.queue(mode))
        Message.objects.create_queue(self.queue(mode), **self.settings[mode])
