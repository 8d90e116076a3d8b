"""PgQueuer's ``concurrency_limit``, of an entrypoint: a key is an entrypoint.

"Concurrency limits are enforced globally at the database level", says
https://janbjorge.github.io/pgqueuer/guides/concurrency-control/. There is no limit of a rate
(release 0.26 had one).
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks import runs
from benchmarks.peers import limited, pgqueuer
from benchmarks.peers.limited import BUSY, CAP, NEWCOMER


async def main(options: dict[str, int]) -> None:
    """The consumer process."""

    async def handle(job: Any) -> None:
        await asyncio.to_thread(runs.handle, **json.loads(job.payload))

    await pgqueuer.consume(dict.fromkeys((BUSY, NEWCOMER), handle), options, concurrency_limit=CAP)


class Worker(limited.Worker, pgqueuer.Worker):
    limits = {"cap": f"of an entrypoint: `concurrency_limit={CAP}`"}
    none = {"rate": "its documentation has no limit of a rate"}
    documentation = "https://janbjorge.github.io/pgqueuer/guides/concurrency-control/"

    def send(self, mode: str, messages: Sequence[dict[str, Any]]) -> None:
        [key] = {message["key"] for message in messages}
        self.enqueue_many(list(messages), key)

    def remaining(self, mode: str) -> int:
        return self.count("SELECT count(*) FROM pgqueuer")


if __name__ == "__main__":
    import uvloop

    uvloop.run(main(json.loads(sys.argv[2])))
