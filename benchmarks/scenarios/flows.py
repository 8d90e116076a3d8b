"""Steps, waits and signals."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

from django.db import connection, connections

from benchmarks.scenarios import Goal, Measure, scenario
from django_pgqueue import signal
from django_pgqueue.handlers import Handler
from django_pgqueue.models import Message, PendingWait, queue
from django_pgqueue.worker.consumer import Consumer
from django_pgqueue.worker.options import Options

DAY = 86_400


@scenario(
    "Steps of one message, one after another",
    unit="steps/s",
    baseline="an INSERT of a row",
    goals=(Goal("a step", "an INSERT of a row", at_least=0.4),),
)
def steps(bench: Any) -> dict[str, Measure]:
    number = bench.amount(200, 2_000)
    bench.sql("CREATE TABLE IF NOT EXISTS bench_row (id bigserial PRIMARY KEY, value jsonb)")
    bench.on_close(bench.sql, "DROP TABLE bench_row")

    def insert() -> None:
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO bench_row (value) VALUES ('{\"receipt\": 41}')")

    def of_message(**options: Any) -> Measure:
        def measure() -> float:
            _, name = bench.queue("ours")
            queue(name).send({})
            [message] = queue(name).read(vt=DAY)
            return _rate(number, lambda n: message.step(f"{n}", lambda: {"receipt": 41}, **options))

        return measure

    return {
        "an INSERT of a row": lambda: _rate(number, lambda n: insert()),
        "a step": of_message(),
        "a step, atomic": of_message(atomic=True),
    }


def _rate(number: int, act: Callable[[int], object]) -> float:
    began = time.perf_counter()
    for n in range(number):
        act(n)
    return number / (time.perf_counter() - began)


@scenario(
    "Read and archive one message, beside 100,000 that wait for signals (quick: 2,000)",
    unit="messages/s",
    baseline="none waits",
    goals=(Goal("others wait", "none waits", at_least=0.95),),
)
def waiting(bench: Any) -> dict[str, Measure]:
    number = bench.amount(1_000, 5_000)

    def measure(waits: int) -> Measure:
        _, name = bench.queue("ours")
        if waits:
            _let_wait(bench, name, waits)

        def run() -> float:
            queue(name).send_batch([{}] * number)

            def cycle(n: int) -> None:
                queue(name).archive(queue(name).read())

            return _rate(number, cycle)

        return run

    return {"none waits": measure(0), "others wait": measure(bench.amount(2_000, 100_000))}


def _let_wait(bench: Any, name: str, number: int) -> None:
    """As if the handlers of so many messages had called wait_for."""
    queue(name).send_batch([{}] * number, delay=DAY)
    bench.sql(
        "INSERT INTO pgqueue_wait (message_id, queue_id, name, key, until) "
        "SELECT d.id, queue_id, 'wait_for ' || d.id, d.id::text, vt FROM pgqueue_deferred d "
        "JOIN pgqueue_queue q ON q.id = d.queue_id WHERE q.name = %s",
        [name],
    )
    bench.on_close(bench.sql, "DELETE FROM pgqueue_wait")
    bench.settle()


@scenario(
    "Time until a consumer's handler starts, or goes on, after the commit",
    unit="ms, p50",
    baseline="a send",
    goals=(Goal("a signal", "a send", at_most=1.5),),
)
def signals(bench: Any) -> dict[str, Measure]:
    number = bench.amount(20, 200)
    return {
        "a send": lambda: _p50(bench, number, waits=False),
        "a signal": lambda: _p50(bench, number, waits=True),
    }


def _p50(bench: Any, number: int, *, waits: bool) -> float:
    """The median in milliseconds from a send, or from a signal, until its handler goes on."""
    _, name = bench.queue("ours")
    reached: dict[str, float] = {}
    ended = threading.Event()

    def handle(message: Message) -> None:
        key = message.body["key"]
        if waits:
            message.wait_for(key, timeout=DAY)
        else:  # the handler's thread connects, as for a wait
            message.last_note()
        reached[key] = time.perf_counter()
        ended.set()

    def act(key: str) -> float:
        """Send the message, or the signal for which it waits. Returns when this began."""
        if waits:
            queue(name).send({"key": key})
            while not PendingWait.objects.filter(key=key).exists():
                time.sleep(0.001)
        time.sleep(0.05)  # the consumer falls asleep
        began = time.perf_counter()
        if waits:
            signal(key)
        else:
            queue(name).send({"key": key})
        return began

    consumer = Consumer([Handler(name, handle)], Options())

    def run() -> None:
        try:
            consumer.run()
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    took = []
    try:
        for n in range(number):
            ended.clear()
            key = f"{name} {n}"
            began = act(key)
            if not ended.wait(30):
                raise TimeoutError(f"no handler came to {key!r}")
            took.append((reached[key] - began) * 1000)
    finally:
        consumer.stop()
        thread.join()
    return statistics.median(took)
