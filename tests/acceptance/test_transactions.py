"""A message sent in a transaction exists if and only if the transaction's other writes do."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connections, transaction
from django.test import Client

from django_pgqueue import queue
from django_pgqueue.engine.read.reading import fall_asleep
from django_pgqueue.errors import TransactionRefused
from django_pgqueue.management.jobs import url_of
from django_pgqueue.models import Message, Queue
from tests.actors import (
    Actor,
    begin,
    call,
    commit,
    execute,
    rollback,
    save_and_send,
    send_each,
)
from tests.app.models import Order
from tests.conftest import rolled_back
from tests.factories import OrderFactory
from tests.ports import free_port
from tests.waiting import until

DATABASES = ["default", "other"]
both = pytest.mark.django_db(databases=DATABASES)
both_committed = pytest.mark.django_db(transaction=True, databases=DATABASES)


def orders_and_messages(using: str = "default") -> tuple[list[int], list[int]]:
    """The saved orders, and the orders named by the messages."""
    saved = list(Order.objects.using(using).order_by("pk").values_list("pk", flat=True))
    told = Message.objects.db_manager(using).pop("orders", None)
    return saved, [message.body["order"] for message in told]


def save(using: str = "default") -> Order:
    order = OrderFactory.create()  # in the database that the routers choose
    queue("orders").send({"order": order.pk})
    return order


# Commit and rollback


def test_a_commit_keeps_both(committed_orders):
    with transaction.atomic():
        order = save()

    assert orders_and_messages() == ([order.pk], [order.pk])


def test_a_rollback_keeps_neither(committed_orders):
    with rolled_back():
        save()

    assert orders_and_messages() == ([], [])


@pytest.mark.parametrize("count", [1, 3, 600])
def test_a_rolled_back_savepoint_takes_its_own_messages_only(committed_orders, count):
    with transaction.atomic():
        kept = save()
        with rolled_back():
            order = OrderFactory()
            committed_orders.send_batch([{"order": order.pk}] * count)
        also_kept = save()

    assert orders_and_messages() == ([kept.pk, also_kept.pk], [kept.pk, also_kept.pk])


def test_no_message_is_read_before_its_transaction_commits(committed_orders, actor):
    with transaction.atomic():
        save()
        before = actor.do(call, "read", "orders")
        length = actor.do(call, "metrics", "orders").length

    after = actor.do(call, "read", "orders")

    assert (before, length, len(after)) == ([], 0, 1)


def test_a_rolled_back_send_is_never_seen(committed_orders, actor):
    actor.do(begin)
    actor.do(call, "send", "orders", 1)
    actor.do(call, "send_batch", "orders", [1] * 600)
    during = committed_orders.read(qty=None)
    actor.do(rollback)

    assert (during, committed_orders.read(qty=None)) == ([], [])
    assert committed_orders.metrics().length == 0


def test_a_message_sent_without_autocommit_waits_for_the_commit(committed_orders, actor):
    transaction.set_autocommit(False)
    try:
        committed_orders.send(1)
        before = actor.do(call, "read", "orders")
        transaction.commit()
    finally:
        transaction.set_autocommit(True)

    assert (before, len(actor.do(call, "read", "orders"))) == ([], 1)


def test_a_queue_can_be_made_and_used_in_one_transaction(committed, actor):
    with transaction.atomic():
        Message.objects.create_queue("orders")
        order = save()

    assert [m.body for m in actor.do(call, "read", "orders")] == [{"order": order.pk}]


# Requests


@pytest.fixture
def atomic_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)


@pytest.mark.urls("tests.app.views")
def test_a_request_that_succeeds_under_atomic_requests_keeps_both(
    committed_orders, atomic_requests
):
    assert Client().post("/accept").status_code == 201

    saved, told = orders_and_messages()
    assert len(saved) == 1
    assert told == saved


@pytest.mark.urls("tests.app.views")
def test_a_request_that_fails_under_atomic_requests_keeps_neither(
    committed_orders, atomic_requests
):
    assert Client(raise_request_exception=False).post("/fail").status_code == 500

    assert orders_and_messages() == ([], [])


@pytest.mark.urls("tests.app.views")
def test_a_request_that_fails_without_atomic_requests_keeps_both(committed_orders):
    assert Client(raise_request_exception=False).post("/fail").status_code == 500

    saved, told = orders_and_messages()
    assert len(saved) == 1
    assert told == saved


@pytest.mark.urls("tests.app.views")
def test_a_read_under_atomic_requests_is_refused(committed_orders, atomic_requests):
    committed_orders.send(1)

    with pytest.raises(TransactionRefused, match="ATOMIC_REQUESTS"):
        Client().post("/read")

    assert committed_orders.metrics().ready == 1


# Several databases


@both_committed
def test_a_message_follows_the_transaction_of_its_own_database(committed):
    for alias in DATABASES:
        Message.objects.using(alias).create_queue("orders")

    with transaction.atomic(using="default"):
        Message.objects.send("orders", {"order": 1})
        with rolled_back("other"):
            Message.objects.using("other").send("orders", {"order": 2})

    assert orders_and_messages("default") == ([], [1])
    assert orders_and_messages("other") == ([], [])


@both
def test_a_queue_of_the_same_name_in_another_database_is_another_queue():
    for alias in DATABASES:
        Message.objects.using(alias).create_queue("orders")

    Message.objects.send("orders", "default")
    Message.objects.db_manager("other").send("orders", "other")
    Message.objects.using("other").bulk_create(
        [Message(queue=Queue.objects.using("other").get(), body="by bulk_create")]
    )

    assert [m.body for m in queue("orders").read(qty=9)] == ["default"]
    found = queue("orders", using="other").read(qty=9)
    assert [m.body for m in found] == ["other", "by bulk_create"]
    assert {m._state.db for m in found} == {"other"}
    assert queue("orders", using="other").archive(found) == [m.id for m in found]


@both
def test_a_read_is_refused_in_a_transaction_of_its_own_database_only():
    for alias in DATABASES:
        Message.objects.using(alias).create_queue("orders")
        Message.objects.using(alias).send("orders", 1)

    with transaction.atomic(using="default"):
        assert len(queue("orders", using="other").read()) == 1
        with pytest.raises(TransactionRefused):
            queue("orders").read()


@both_committed
def test_the_transaction_that_counts_is_that_of_the_queues_database(committed, settings):
    settings.PGQUEUE = {"DATABASE": "other"}
    settings.DATABASE_ROUTERS = ["django_pgqueue.routers.QueueRouter"]
    Message.objects.create_queue("orders")

    with rolled_back("other"):
        queue("orders").send(1)
    with rolled_back("default"):
        queue("orders").send(2)

    with transaction.atomic(using="default"):
        assert [message.body for message in queue("orders").read(qty=2)] == [2]


# Poolers


@pytest.mark.acceptance
@pytest.mark.parametrize(
    "options",
    [{"pool": True}, {"pool": {"min_size": 1, "max_size": 2}}, {"server_side_binding": True}],
    ids=str,
)
def test_it_works_with_psycopgs_pool_and_with_server_side_binding(committed, reachable, options):
    default = reachable["default"]
    with Actor({"default": {**default, "OPTIONS": {**default["OPTIONS"], **options}}}) as actor:
        use_every_operation(actor)


@pytest.fixture
def pgbouncer(reachable: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Django's settings for the tests' database behind a pgbouncer in transaction mode."""
    settings = "pool_mode = transaction\ndefault_pool_size = 1\n"
    with pooled(reachable["default"], settings) as database:
        yield database


@contextmanager
def pooled(database: dict[str, Any], settings: str) -> Iterator[dict[str, Any]]:
    """Run pgbouncer with these settings; yields Django's settings for the database behind it."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        pytest.skip("needs pgbouncer (Debian's package of that name)")
    with tempfile.TemporaryDirectory(prefix="pgbouncer-") as directory:
        home = Path(directory)
        home.chmod(0o777)
        port = free_port()
        server = {
            "host": database["HOST"] or database["OPTIONS"].get("host"),
            "port": database["PORT"] or database["OPTIONS"].get("port", "5432"),
            "user": database["USER"],
            "password": database["PASSWORD"],
            "dbname": database["NAME"],
        }
        connect = " ".join(f"{key}={value}" for key, value in server.items() if value)
        config = home / "pgbouncer.ini"
        config.write_text(
            f"[databases]\nqueue = {connect}\n"
            f"[pgbouncer]\n{settings}auth_type = any\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir = \n"
            "logfile = \nignore_startup_parameters = extra_float_digits\n"
        )
        config.chmod(0o644)
        process = subprocess.Popen(
            [program, str(config)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            user=who_may_connect(str(server["host"])),
        )
        try:
            wait_for_port(process, port)
            yield {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": "queue",
                "HOST": "127.0.0.1",
                "PORT": str(port),
                "USER": database["USER"],
                "PASSWORD": database["PASSWORD"],
                "DISABLE_SERVER_SIDE_CURSORS": True,
            }
        finally:
            process.terminate()
            process.communicate(timeout=20)


def who_may_connect(host: str) -> str | None:
    """The user to run pgbouncer as if this process is root, which pgbouncer refuses."""
    if os.geteuid() != 0:
        return None
    return Path(host).owner() if host.startswith("/") else "nobody"


def wait_for_port(process: subprocess.Popen[bytes], port: int) -> None:
    def listens() -> bool:
        assert process.poll() is None, f"pgbouncer ended: {process.stderr.read().decode()}"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    until(listens, 20)


@pytest.mark.acceptance
def test_it_works_behind_pgbouncer_in_transaction_mode(committed, pgbouncer):
    with Actor({"default": pgbouncer}) as actor:
        use_every_operation(actor)

        # A poll receives no notification here, so it polls at intervals.
        waiting = actor.start(
            call, "read_with_poll", "orders", max_poll_seconds=30, poll_interval_ms=50
        )
        pk = Message.objects.send("orders", "after a while", delay=0.3)
        assert [m.id for m in waiting.result(timeout=60)] == [pk]

        # A send behind the pooler notifies whoever sleeps elsewhere.
        with psycopg.connect(url_of("default"), autocommit=True) as listener:
            listener.execute("LISTEN pgqueue")
            orders = Message.objects.resolve("orders").opened
            fall_asleep(orders, heard=None, doubt=None)
            actor.do(call, "send", "orders", "at once")
            assert list(listener.notifies(timeout=20, stop_after=1))


@pytest.mark.acceptance
def test_waiting_polls_hold_no_connection_of_pgbouncers(committed_orders, pgbouncer):
    with ExitStack() as stack:
        one, two, another = (stack.enter_context(Actor({"default": pgbouncer})) for _ in range(3))
        polls = [
            poller.start(call, "read_with_poll", "orders", max_poll_seconds=60)
            for poller in (one, two)
        ]

        # The three polls and this process share one server connection.
        assert [another.do(call, "peek", "orders") for _ in range(5)] == [[]] * 5

        assert not any(poll.done() for poll in polls)
        sent = committed_orders.send_batch([1, 2])
        read = [message.id for poll in polls for message in poll.result(timeout=60)]
        assert sorted(read) == sent


@pytest.mark.acceptance
def test_prepared_statements_that_pgbouncer_exchanges_do_no_harm(committed, pgbouncer):
    untold = {"default": {**pgbouncer, "DISABLE_SERVER_SIDE_CURSORS": False}}
    queues = ["orders", "bills"]
    for name in queues:
        Message.objects.create_queue(name)

    with ExitStack() as stack:
        # The senders share one session, with each other's prepared statements.
        senders = [stack.enter_context(Actor(untold)) for _ in range(4)]
        for _ in range(2):
            sending = [
                sender.start(send_each, name, 100)
                for sender, name in zip(senders, queues * 2, strict=True)
            ]
            sent = [future.result(timeout=60) for future in sending]
            for name, one, two in zip(queues, sent[:2], sent[2:], strict=True):
                read = senders[0].do(call, "read", name, qty=None)
                assert [message.id for message in read] == sorted(one + two)
                assert len(read) == 200


def use_every_operation(actor: Actor) -> None:
    assert actor.do(call, "create_queue", "orders").name == "orders"
    actor.do(call, "create_queue", "daily", partition_interval=86400, unlogged=True)
    one = actor.do(call, "send", "orders", {"order": 1}, headers={"h": 1}, delay=-1)
    batch = actor.do(call, "send_batch", "orders", [1, None, {"a": 1}])
    many = actor.do(call, "send_batch", "orders", list(range(600)))
    actor.do(begin)
    order = actor.do(save_and_send, "orders")
    actor.do(rollback)
    actor.do(begin)
    kept = actor.do(save_and_send, "orders")
    actor.do(commit)
    assert actor.do(execute, "SELECT id FROM orders_app_order") == [(kept,)]
    assert kept != order

    [found] = actor.do(call, "read", "orders", conditional={"a": 1}, vt=0)
    assert (found.id, found.body) == (batch[2], {"a": 1})
    [again] = actor.do(call, "read", "orders", conditional={"a": 1})
    assert actor.do(call, "archive", "orders", found.receipt).lost == [found.receipt]
    assert actor.do(call, "set_vt", "orders", again.receipt, 60) == [again.id]
    assert actor.do(call, "archive", "orders", again.receipt) == [again.id]
    assert actor.do(call, "read_with_poll", "orders", max_poll_seconds=0)[0].id == one
    assert actor.do(call, "peek", "orders")[0].id == batch[0]
    assert [m.id for m in actor.do(call, "pop", "orders", 2)] == batch[:2]
    assert actor.do(call, "set_vt", "orders", [many[0], many[1]], 60) == many[:2]
    assert actor.do(call, "delete", "orders", many[1:3]) == many[1:3]
    assert actor.do(call, "archive", "orders", [many[0], many[4]]) == [many[0], many[4]]
    assert actor.do(call, "read_with_poll", "daily", max_poll_seconds=0.2) == []
    metrics = actor.do(call, "metrics", "orders")
    assert (metrics.archived, metrics.in_flight) == (3, 1)
    assert len(actor.do(call, "read", "orders", qty=None)) == metrics.ready
    assert actor.do(call, "purge", "orders") == metrics.length
    assert actor.do(call, "drop_queue", "daily") is True
    actor.do(execute, "DELETE FROM orders_app_order")
