"""A system for an operator: some queues are healthy, some are not."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

from django.contrib.auth.models import User
from django.utils.timezone import now

from django_pgqueue import queue
from django_pgqueue.acks import Failure
from django_pgqueue.models import (
    Batch,
    BulkAction,
    History,
    Mark,
    Message,
    Process,
    Queue,
    Rollup,
    Schedule,
)
from django_pgqueue.queues.bulk import Kind
from django_pgqueue.queues.ticks import Outcome, Tick

TRACEBACK = """CardDeclined: the bank said no to card <4242> of customer 1{number:05}
Traceback (most recent call last):
  File "/app/shop/payments/handlers.py", line 48, in charge
    gateway.charge(order, amount=message.body["total"], currency="EUR", idempotency_key=message.id)
  File "/app/shop/payments/gateway.py", line 112, in charge
    raise CardDeclined(response["reason"])
shop.payments.CardDeclined: the bank said no to card <4242> of customer 1{number:05}"""


#: The longest name of a queue.
LONG = "a-very-long-queue-name-that-somebody-chose-with-sixty-three-chr"


def superuser() -> User:
    return User.objects.create_superuser("ann", "ann@example.com", "ann")


def play() -> None:
    """Fill the queues: every page has something to show, and messages are in every place."""
    dead = Message.objects.create_queue("payments.dead")
    Message.objects.create_queue("payments", dead_letter_queue=dead, visibility_timeout=60)
    for name in ("mails", "invoices", "reports", "search-index", "thumbnails", LONG):
        Message.objects.create_queue(name, retention=dt.timedelta(days=7))
    Queue.objects.filter(name="reports").update(paused=True)
    Queue.objects.forget_all()

    payments, mails, invoices = queue("payments"), queue("mails"), queue("invoices")
    payments.send_batch([order(number) for number in range(30)])
    worker = Process.objects.create(host="web-3", pid=4713, version="0.1.0", queues=["payments"])
    Process.objects.filter(pk=worker.pk).update(stopping=True)
    for number, message in enumerate(payments.read(qty=12)):
        text = TRACEBACK.format(number=number)
        failure = Failure(1, "shop.payments.CardDeclined", text.splitlines()[-1], text)
        payments.fail({message.receipt: text}, failures={message.receipt: failure})
    for message in payments.read(qty=4, vt=600):
        late = Failure(1, "builtins.TimeoutError", "the bank did not answer", TRACEBACK)
        payments.retry(
            {message.receipt: 300},
            errors={message.receipt: "TimeoutError: the bank did not answer"},
            failures={message.receipt: late},
            process_id=worker.pk,
        )
    payments.read(qty=3, vt=600)
    payments.send_batch([order(number) for number in range(8)], delay=3600)

    mails.send_batch([{"to": f"user{n}@example.com", "template": "welcome"} for n in range(60)])
    mails.archive(mails.read(qty=40))
    for number, message in enumerate(mails.read(qty=4)):
        message.reject(TRACEBACK.format(number=number))
    mails.read(qty=2, vt=0)

    for customer in range(3):
        invoices.send_batch(
            [{"customer": customer, "invoice": n} for n in range(9)], group=f"customer-{customer}"
        )
    invoices.send_batch([{"customer": 7}] * 2, group="customer-7, <b>Müller</b> & Söhne, Köln")
    invoices.group("customer-2").pause()
    invoices.group("customer-1").limit(2)
    for message in invoices.read(qty=2):
        if message.group_key == "customer-0":
            invoices.retry({message.receipt: 3600}, errors={message.receipt: "CardDeclined: no"})
    queue("reports").send_batch([{"month": n, "password": "hunter2"} for n in range(5)])
    queue("search-index").send({"text": "<script>alert(1)</script> \u202efdp.exe"})
    consumer = Process.objects.create(
        host="web-1", pid=4711, version="0.1.0", queues=["mails", "thumbnails"]
    )
    Process.objects.create(
        host="web-2",
        pid=4712,
        version="0.1.0",
        queues=["invoices"],
        heartbeat_at=now() - dt.timedelta(minutes=9),
    )
    held = [message.id for message in mails.read(qty=3, vt=600)]
    runs = [
        {"message": pk, "queue": "mails", "number": 1, "what": "shop.mails.send", "seconds": 7.5}
        for pk in held
    ]
    stack = '  File "/app/shop/mails.py", line 12, in send\n    smtp.send(mail)\n'
    Process.objects.filter(pk=consumer.pk).update(
        working_on={"mails": held},
        runs=runs,
        release="v42",
        stacks=[{**runs[0], "stack": stack}],
        stacks_at=now(),
    )
    Mark.objects.create(text="v42", at=now() - dt.timedelta(minutes=21), is_release=True)
    Message.objects.bind("customer.#", "mails")
    Message.objects.bind("customer.*.paid", "invoices")
    _tasks()
    _schedules()
    _batches()
    _bulk_actions()
    _history()
    _rollups()


def _tasks() -> None:
    """Runs of three tasks, some of which failed."""
    thumbnails = queue("thumbnails")
    for task, spread in (("resize", 0.05), ("detect_faces", 2.0), ("gone", 0)):
        body = {"task": f"shop.images.tasks.{task}", "kwargs": {}}
        thumbnails.send_batch([{**body, "args": [n]} for n in range(40)])
        for number, message in enumerate(thumbnails.read(qty=40)):
            if number % 13 == 5 or not spread:
                message.reject("OSError: cannot identify image file")
                continue
            seconds = spread * math.exp(math.sin(number))
            result = {"return_value": None, "worker_id": "1", "seconds": seconds}
            thumbnails.complete([message.receipt], results={message.receipt: result})


def _schedules() -> None:
    """A schedule that has run, one that is paused, and one that fails."""
    reports = Queue.objects.get(name="reports")
    often = Schedule.objects.create(
        name="refresh", queue=reports, interval=dt.timedelta(seconds=20), body={"all": True}
    )
    often.run()
    ends: list[tuple[Any, ...]] = [
        (Outcome.SENT, late, often.run())
        for late in (0, 1, 0, 2, 0, 40, 700, 4000, 90_000, 0, 0, 20)
    ]
    ends[5:5] = [(Outcome.MISSED,)] * 3 + [(Outcome.HELD, 0, often.run()), (Outcome.FAILED,)]
    often._update(
        last_run_at=now() - dt.timedelta(seconds=20),
        ticks=[
            Tick.at_moment(now() - dt.timedelta(seconds=20 * (len(ends) - place)), *end)
            for place, end in enumerate(ends)
        ],
    )
    Schedule.objects.create(
        name="nightly-report", queue=reports, cron="0 4 * * *", time_zone="Europe/Berlin"
    )
    late = Schedule.objects.create(name="monthly", queue=reports, cron="0 4 1 * *", paused=True)
    late._update(last_run_at=now() - dt.timedelta(days=20))
    broken = Schedule.objects.create(
        name="broken", queue=reports, interval=dt.timedelta(minutes=10)
    )
    broken._update(error="DatabaseError: permission denied for table pgqueue_message_q4")


def _batches() -> None:
    """A batch in progress, one without a callback's queue, an abandoned one, and a done one."""
    thumbnails, mails = queue("thumbnails"), queue("mails")
    Message.objects.create_queue("albums")
    with mails.batch(name="newsletter, November", then=queue("reports").message({})) as running:
        running.send_batch([{"user": number} for number in range(12)])
    mails.cancel(mails.peek(qty=40)[-1].id)
    with thumbnails.batch(then=queue("albums").message({"album": 8})):
        pass
    with thumbnails.batch(then=queue("albums").message({"album": 9})) as failing:
        failing.send("c.png")
    queue("albums").drop()
    thumbnails.archive(thumbnails.read(qty=1))
    thumbnails.open_batch(name="album 7").send_batch(["a.png", "b.png"])
    late = thumbnails.open_batch(name="album 10", open_for=60)
    Batch.objects.filter(pk=late.pk).update(open_until=now() - dt.timedelta(minutes=9))
    due = Batch.objects.due(using="default")
    Batch.objects.count_members(due, using="default")


def _bulk_actions() -> None:
    """A finished bulk action, and one that was stopped half-way."""
    reports = Queue.objects.get(name="reports")
    values = {"username": "ann", "user_id": str(User.objects.get(username="ann").pk)}
    sent = queue("reports").send_batch([{"month": n} for n in range(2600)])
    done = BulkAction.objects.begin(reports, Kind.CANCEL, sent[:900], values)
    BulkAction.objects.drive(60, using="default", only=[done.pk])
    half = BulkAction.objects.begin(reports, Kind.DELETE, sent[900:], values)
    BulkAction.objects.drive(0, using="default", only=[half.pk])
    half.stop()


def beat() -> None:
    """Renew the heartbeat of the one living consumer."""
    Process.objects.filter(host="web-1").update(heartbeat_at=now())


def order(number: int) -> dict[str, object]:
    return {
        "order_id": 73_000 + number,
        "customer": f"customer-1{number:05}",
        "total": "129.90",
        "lines": [{"sku": "A-17", "quantity": 2}, {"sku": "B-4", "quantity": 1}],
    }


def _history() -> None:
    """Two hours by the minute: payments fail more and more, and mails come in waves."""
    minute = now().replace(second=0, microsecond=0)
    for name, size in (("mails", 900), ("payments", 240), ("invoices", 60)):
        pk = Queue.objects.get(name=name).pk
        History.objects.bulk_create(
            History(
                queue_id=pk,
                bucket=minute - dt.timedelta(minutes=ago),
                seconds=60,
                sent=int(size * (1.2 + math.sin(ago / 9))),
                completed=int(size * (1.2 + math.sin((ago + 3) / 9))),
                retried=int(size / (3 * ago + 5)) if name == "payments" else 0,
                dead_lettered=int(size / (6 * ago + 20)) if name == "payments" else 0,
                busy=size / 12,
                waits={"-16": 80, "-8": 15, "2": 5},
                runs={"-14": 60, "-8": 30, "0": 9, "8": 1},
                depth=int(size / 9 * (1.1 + math.sin(ago / 9))),
                oldest=3 * (1.1 + math.sin(ago / 9)),
            )
            for ago in range(120)
        )


def _rollups() -> None:
    until = now().replace(minute=0, second=0, microsecond=0)
    for name, size in (("mails", 900), ("payments", 300), ("invoices", 120)):
        for hours in range(30):
            wave = 1 + math.sin(hours / 4)
            bad = int(size / 50 * wave) if name == "payments" else 0
            Rollup.objects.create(
                queue_name=name,
                seconds=3600,
                bucket=until - dt.timedelta(hours=hours),
                sent=int(size * wave),
                completed=int(size * wave) - 2 * bad,
                failed=bad,
                retried=bad,
                dead_lettered=bad,
                backlog=int(size / 10 * wave),
                busy=size * wave,
                wait_p50=0.02,
                wait_p95=0.2 * wave,
                wait_p99=0.5 * wave,
                run_p50=0.1,
                run_p95=0.4,
                run_p99=0.9 + wave,
                top_errors=[{"error": TRACEBACK.splitlines()[0].format(number=0), "count": bad}]
                if bad
                else [],
            )
