"""Subscriptions in fixtures, models, PGMQ's functions, schedules and Spark."""

from __future__ import annotations

import json

import pytest
from django.core.management import call_command
from django.db import DatabaseError, connection

from django_pgqueue.errors import InvalidArgument, QueueMismatch
from django_pgqueue.management.jobs import url_of
from django_pgqueue.models import ArchivedMessage, Message, Queue, Schedule, queue
from tests.subscriptions.messages import numbers, send

pytestmark = pytest.mark.django_db(transaction=True)


def made_for(name):
    """The triggers and indexes of a queue's tables."""
    pk = Queue.objects.get(name=name).pk
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT (SELECT count(*) FROM pg_trigger WHERE tgrelid = c.oid),"
            "       (SELECT count(*) FROM pg_index WHERE indrelid = c.oid) "
            "FROM pg_class c WHERE relname = ANY(%s) ORDER BY relname",
            [[f"pgqueue_message_q{pk}", f"pgqueue_archive_q{pk}"]],
        )
        return cursor.fetchall()


# Models


def test_a_saved_queue_with_a_source_is_a_subscription(orders):
    Queue(name="audit", source=Queue.objects.get(name="orders")).save()
    send(orders, 0)

    assert numbers(queue("audit").read()) == [0]
    with pytest.raises(InvalidArgument, match="is a subscription"):
        Queue(name="more", source=Queue.objects.get(name="audit")).save()


def test_the_source_of_a_subscription_cannot_change(orders, audit):
    queue("mails").create()
    mails = Queue.objects.get(name="mails")
    with pytest.raises(InvalidArgument, match="cannot change"):
        Queue.objects.filter(name="audit").update(source=mails)
    found = Queue.objects.get(name="audit")
    found.source = mails
    with pytest.raises(InvalidArgument, match="cannot change"):
        found.save(update_fields=["source"])
    found.save()

    assert Queue.objects.get(name="audit").source.name == "orders"
    with pytest.raises(QueueMismatch):
        queue("audit").subscribe(to="mails")


def test_a_deleted_subscription_leaves_nothing_behind(orders):
    before = made_for("orders")
    audit = queue("audit")
    audit.subscribe(to="orders", start="earliest")
    send(orders, *range(3))
    audit.read(qty=2)
    assert made_for("orders") > before
    Queue.objects.get(name="audit").delete()

    assert made_for("orders") == before
    with connection.cursor() as cursor:
        cursor.execute("SELECT (SELECT count(*) FROM pgqueue_cursor), count(*) FROM pgqueue_lease")
        assert cursor.fetchone() == (0, 0)
    assert numbers(orders.read(qty=5)) == [0, 1, 2]


def test_a_message_inserted_into_a_subscription_is_its_own(orders, audit):
    owner = Queue.objects.get(name="audit")
    Message.objects.bulk_create([Message(queue=owner, body={"n": n}) for n in range(2)])
    Message.objects.create(queue=owner, body={"n": 2})

    assert numbers(audit.read(qty=5)) == [0, 1, 2]
    assert orders.read() == []


def test_schedules_of_a_subscription_are_refused(orders, audit):
    with pytest.raises(InvalidArgument, match="give the schedule its source"):
        Schedule.objects.create(
            name="nightly", queue=Queue.objects.get(name="audit"), cron="0 4 * * *"
        )
    with pytest.raises(InvalidArgument, match="give the schedule its source"):
        Schedule.objects.declare("nightly", "audit", using="default", cron="0 4 * * *")


# Fixtures


def dumped(path, *labels):
    call_command("dumpdata", *labels, natural_primary=True, natural_foreign=True, output=str(path))
    return json.loads(path.read_text())


def test_a_fixture_makes_subscriptions_that_begin_anew(orders, audit, tmp_path):
    audit.alter(archive_completed=True)
    send(orders, *range(4))
    got = audit.read(qty=3)
    audit.archive(got[0])
    audit.release([got[1].receipt])
    orders.archive(orders.read(qty=2))
    path = tmp_path / "all.json"
    labels = [f"django_pgqueue.{name}" for name in ("queue", "message", "archivedmessage")]
    assert len(dumped(path, *labels)) > 6
    for name in ("audit", "orders"):
        Queue.objects.get(name=name).delete()

    call_command("loaddata", str(path), verbosity=0)

    assert Message.objects.filter(queue__name="orders").count() == 4
    assert ArchivedMessage.objects.filter(queue__name="orders").count() == 2
    assert not Message.objects.filter(queue__name="audit").exists()
    assert not ArchivedMessage.objects.filter(queue__name="audit").exists()
    assert numbers(queue("orders").read(qty=5)) == [2, 3]
    assert numbers(queue("audit").read(qty=5)) == [0, 1, 2, 3]
    audit = queue("audit")
    send(queue("orders"), 4)
    assert numbers(audit.read(qty=5)) == [4]


def test_a_fixture_is_loaded_beside_the_copies_of_a_subscription(orders, audit, tmp_path):
    send(orders, *range(2))
    path = tmp_path / "all.json"
    dumped(path, "django_pgqueue.queue", "django_pgqueue.message")
    got = audit.read(qty=2)
    audit.release([message.receipt for message in got])
    orders.delete([got[0].id])

    call_command("loaddata", str(path), verbosity=0)

    rows = Message.objects.order_by("queue__name", "pk").values_list("queue__name", "pk")
    assert list(rows) == [(name, each.id) for name in ("audit", "orders") for each in got]


# PGMQ's functions


@pytest.fixture
def pgmq():
    call_command("pgqueue_pgmq", "install", verbosity=0)

    def ask(text, *params):
        with connection.cursor() as cursor:
            cursor.execute(text, params)
            return cursor.fetchall()

    yield ask
    with connection.cursor() as cursor:
        cursor.execute("DROP SCHEMA IF EXISTS pgmq CASCADE")


def test_pgmq_leaves_subscriptions_out(orders, audit, pgmq):
    assert pgmq("SELECT queue_name FROM pgmq.list_queues()") == [("orders",)]
    assert pgmq("SELECT queue_name FROM pgmq.metrics_all()") == [("orders",)]
    for call in (
        "send('audit', '{}')",
        "send_batch('audit', ARRAY['{}']::jsonb[])",
        "read('audit', 30, 1)",
        "read_grouped('audit', 30, 1)",
        "read_with_poll('audit', 30, 1, 1, 100)",
        "pop('audit')",
        "archive('audit', 1::bigint)",
        "delete('audit', 1::bigint)",
        "set_vt('audit', 1::bigint, 30)",
        "purge_queue('audit')",
        "metrics('audit')",
        "bind_topic('a.*', 'audit')",
        "enable_notify_insert('audit', 10)",
        "drop_queue('audit')",
    ):
        with pytest.raises(DatabaseError, match="is a subscription"):
            pgmq(f"SELECT pgmq.{call}")
    with pytest.raises(DatabaseError, match="is the source of audit"):
        pgmq("SELECT pgmq.drop_queue('orders')")


def test_pgmq_sends_to_and_deletes_from_a_source(orders, audit, pgmq):
    [(first,)] = pgmq("SELECT pgmq.send('orders', '{\"n\": 0}')")
    pgmq("SELECT pgmq.send('orders', '{\"n\": 1}')")
    pgmq("SELECT pgmq.delete('orders', %s::bigint)", first)
    pgmq("SELECT pgmq.purge_queue('orders')")

    assert sorted(numbers(audit.read(qty=5))) == [0, 1]


# Spark


def test_spark_refuses_subscriptions(orders, audit):
    pytest.importorskip("pyarrow")
    pytest.importorskip("pyspark")
    import pyarrow as pa

    from pyspark_pgqueue.errors import InvalidOption, PipelineError
    from pyspark_pgqueue.sink.staging import stage
    from pyspark_pgqueue.source import database
    from pyspark_pgqueue.source.options import Options

    url = url_of("default")
    rows = pa.RecordBatch.from_pydict({"body": ["{}"]})
    with database.connect(url) as opened:
        assert [name for _, name in database.queues(opened, Options.parse({"url": url}))] == [
            "orders"
        ]
        with pytest.raises(InvalidOption, match="Name its source, queue 'orders'"):
            database.queues(opened, Options.parse({"url": url, "subscribe": "audit"}))
    with pytest.raises(PipelineError, match="is a subscription"):
        stage(url, ["body"], "audit", [rows])
