"""A worker of pgmq-py: ``python -m tests.pgmq.worker CONNINFO QUEUE``. Runs until it is killed.

It archives a message of a group alone, and messages without a group together: sometimes late, when
others may have read them again.
"""

from __future__ import annotations

import datetime as dt
import itertools
import random
import sys
import time

import psycopg
from pgmq import PGMQueue

from tests.working.history import record

#: Seconds that a lease lasts, and that it still has to last when a message's work starts.
LEASE, RESERVE = 8, 5


def work(conninfo: str, queue: str) -> None:
    client = PGMQueue(conn_string=conninfo, init_extension=False, pool_size=1)
    effects = psycopg.connect(conninfo, autocommit=True)
    batches = itertools.count(1)
    for read in itertools.cycle([client.read_batch, client.read_grouped, client.read_grouped_rr]):
        done = []
        for message in read(queue, LEASE, 20):
            if message.vt < dt.datetime.now(dt.timezone.utc) + dt.timedelta(seconds=RESERVE):
                break
            op = message.message["op"]
            record("deliver", op=op)
            effects.execute(
                "INSERT INTO orders_app_order (number, note) VALUES (%s, 'python')", [op]
            )
            record("effect", op=op)
            if "group" not in message.message:
                done.append(message)
            elif client.archive(queue, message.msg_id):
                record("acked", op=op)
        if done and next(batches) % 3 == 0:
            for event, pause in (("late", LEASE + random.random()), ("archives", 0)):
                for message in done:
                    record(event, op=message.message["op"])
                time.sleep(pause)
        archived = client.archive_batch(queue, [message.msg_id for message in done])
        for message in done:
            if message.msg_id in archived:
                record("acked", op=message.message["op"])
        time.sleep(0.02)


if __name__ == "__main__":
    work(*sys.argv[1:])
