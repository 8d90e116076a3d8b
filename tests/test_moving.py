"""The guides on moving from other queues: their scripts run on the other queues' own tables."""

from __future__ import annotations

import datetime as dt
import json
import sys
import uuid
from types import ModuleType
from typing import Any

import django
import pytest
from django.db import connection
from django.test import override_settings

from django_pgqueue import queue
from django_pgqueue.errors import QueueNotFound
from django_pgqueue.models import LiveMessage, Message
from django_pgqueue.testing import drain
from tests.conftest import run_sql
from tests.tasks.framework import needs_tasks
from tests.test_docs import ROOT, blocks, run

PGMQ = """
CREATE SCHEMA pgmq;
CREATE TABLE pgmq.q_orders (
    msg_id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    read_ct int NOT NULL DEFAULT 0,
    enqueued_at timestamptz NOT NULL DEFAULT now(),
    vt timestamptz NOT NULL,
    message jsonb,
    headers jsonb
);
INSERT INTO pgmq.q_orders (read_ct, vt, message, headers) VALUES
    (0, now(), '{"order": 1}', '{"source": "web"}'),
    (0, now() + interval '1 hour', '{"order": 2}', NULL),
    (3, now() - interval '1 hour', '{"order": 3}', NULL),
    (1, now() + interval '1 hour', '{"order": 4}', NULL);
"""

PROCRASTINATE = """
CREATE TYPE procrastinate_job_status AS ENUM
    ('todo', 'doing', 'succeeded', 'failed', 'cancelled', 'aborting', 'aborted');
CREATE TABLE procrastinate_jobs (
    id bigserial PRIMARY KEY,
    queue_name varchar(128) NOT NULL,
    task_name varchar(128) NOT NULL,
    priority integer DEFAULT 0 NOT NULL,
    lock text,
    queueing_lock text,
    args jsonb DEFAULT '{}' NOT NULL,
    status procrastinate_job_status DEFAULT 'todo' NOT NULL,
    scheduled_at timestamptz,
    attempts integer DEFAULT 0 NOT NULL
);
CREATE TABLE procrastinate_periodic_defers (
    id bigserial PRIMARY KEY,
    task_name varchar(128) NOT NULL,
    job_id bigint REFERENCES procrastinate_jobs (id)
);
INSERT INTO procrastinate_jobs (queue_name, task_name, priority, lock, args, status) VALUES
    ('mails', 'shop.tasks.send_mail', 500, 'ann', '{"order": 1}', 'todo'),
    ('mails', 'shop.tasks.send_mail', 0, NULL, '{"order": 2}', 'todo'),
    ('mails', 'shop.tasks.send_mail', 0, NULL, '{"order": 3}', 'doing'),
    ('other', 'shop.tasks.send_mail', 0, NULL, '{"order": 4}', 'todo');
INSERT INTO procrastinate_periodic_defers (task_name, job_id) VALUES ('shop.tasks.send_mail', 1);
"""

DJANGO_TASKS_DB = """
CREATE TABLE django_tasks_database_dbtaskresult (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    status varchar(10) NOT NULL DEFAULT 'READY',
    enqueued_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    args_kwargs jsonb NOT NULL,
    priority integer NOT NULL DEFAULT 0,
    task_path text NOT NULL DEFAULT 'tests.tasks.sample.add',
    queue_name varchar(32) NOT NULL DEFAULT 'default',
    backend_name varchar(32) NOT NULL DEFAULT 'default',
    run_after timestamptz NOT NULL DEFAULT '9999-01-01'
);
"""

DJANGO_OX = """
CREATE TABLE django_ox_oxtask (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    task_path varchar(255) NOT NULL DEFAULT 'tests.tasks.sample.add',
    args jsonb NOT NULL,
    kwargs jsonb NOT NULL DEFAULT '{"two": 5}',
    queue_name varchar(128) NOT NULL DEFAULT 'default',
    priority smallint NOT NULL DEFAULT 0,
    status varchar(10) NOT NULL DEFAULT 'READY',
    run_after timestamptz,
    enqueued_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE django_ox_oxscheduletick (
    id bigserial PRIMARY KEY,
    task_id uuid REFERENCES django_ox_oxtask (id) DEFERRABLE INITIALLY DEFERRED
);
INSERT INTO django_ox_oxtask (args) VALUES ('[1]');
INSERT INTO django_ox_oxtask (args, priority, run_after)
    VALUES ('[2]', 7, now() + interval '1 hour');
INSERT INTO django_ox_oxtask (args, status) VALUES ('[3]', 'RUNNING'), ('[4]', 'WAITING');
INSERT INTO django_ox_oxscheduletick (task_id) SELECT id FROM django_ox_oxtask;
"""


def page(name: str, part: str = "", names: dict[str, Any] | None = None) -> dict[str, Any]:
    """The names defined by a page's Python, or by its blocks that contain ``part``."""
    names = {"__name__": "guide"} if names is None else names
    for block in blocks(ROOT / "docs" / f"{name}.md"):
        if part in block.text:
            run(block, names)
    return names


def test_messages_of_pgmq_move_but_for_those_that_are_read(orders, shop):
    run_sql(PGMQ)

    assert page("pgmq", "def move(")["move"]("orders") == 3

    found = orders.read(qty=10)
    assert [message.body["order"] for message in found] == [1, 3]
    assert found[0].headers == {"source": "web", "x-pgmq-id": 1}
    [delayed] = LiveMessage.objects.filter(state="SCHEDULED")
    assert delayed.vt > dt.datetime.now(dt.timezone.utc) + dt.timedelta(minutes=50)
    assert [row[0] for row in run_sql("SELECT msg_id FROM pgmq.q_orders")] == [4]


def test_nothing_of_pgmq_is_deleted_without_a_queue_to_move_to(shop):
    run_sql(PGMQ)

    with pytest.raises(QueueNotFound):
        page("pgmq", "def move(")["move"]("nowhere")

    assert run_sql("SELECT count(*) FROM pgmq.q_orders") == [(4,)]


def test_waiting_jobs_of_procrastinate_move_and_run(shop, capsys):
    run_sql(PROCRASTINATE)
    queue("mails").create()

    moved = page("moving_from_procrastinate")["move"]("mails", "mails")

    assert moved == 2
    [first, second] = sorted(queue("mails").peek(qty=10), key=lambda message: message.id)
    assert (first.priority, first.group) == (100, "ann")
    assert second.group is None
    drain("mails")
    assert capsys.readouterr().out == "mail for order 1\nmail for order 2\n"
    assert run_sql("SELECT count(*) FROM procrastinate_jobs") == [(2,)]


@pytest.mark.skipif(django.VERSION < (6, 0), reason="Django's Tasks came with 6.0")
def test_waiting_tasks_of_django_tasks_db_move_in_their_order(shop):
    run_sql(DJANGO_TASKS_DB)
    soon = dt.datetime.now(dt.timezone.utc) + dt.timedelta(hours=1)
    rows = [("READY", 1, "9999-01-01"), ("READY", 2, soon), ("RUNNING", 3, soon)]
    with connection.cursor() as cursor:
        for status, number, run_after in rows:
            cursor.execute(
                "INSERT INTO django_tasks_database_dbtaskresult (status, args_kwargs, run_after)"
                " VALUES (%s, %s, %s)",
                [status, json.dumps({"args": [number], "kwargs": {"two": 5}}), run_after],
            )
    queue("default").create()
    names = page("moving_from_django_tasks_db")

    with override_settings(TASKS=names["TASKS"]):
        assert names["move"]() == 2
        assert names["move"]() == 0

    states = LiveMessage.objects.order_by("pk").values_list("state", flat=True)
    assert list(states) == ["PENDING", "SCHEDULED"]
    assert run_sql("SELECT count(*) FROM django_tasks_database_dbtaskresult") == [(1,)]


def test_the_consumer_that_replaces_a_task_of_celery_runs(shop):
    queue("charges").create()
    names = page("moving_from_celery", "@consumer(")

    order = names["place"]("A-7")
    drain("charges")

    order.refresh_from_db()
    assert order.note == "charged"


@needs_tasks
def test_waiting_tasks_of_django_ox_move_in_their_order(shop):
    run_sql(DJANGO_OX)
    queue("default").create()
    names = page("moving_from_django_ox")

    with override_settings(TASKS=names["TASKS"]):
        assert names["move"]() == 2
        assert names["move"]() == 0

    run_sql("SET CONSTRAINTS ALL IMMEDIATE")
    moved = Message.objects.order_by("pk")
    assert [(each.body["args"], each.body["kwargs"], each.priority) for each in moved] == [
        ([1], {"two": 5}, 0),
        ([2], {"two": 5}, 7),
    ]
    states = LiveMessage.objects.order_by("pk").values_list("state", flat=True)
    assert list(states) == ["PENDING", "SCHEDULED"]
    assert run_sql("SELECT args::text FROM django_ox_oxtask ORDER BY 1") == [("[3]",), ("[4]",)]
    assert run_sql("SELECT count(task_id) FROM django_ox_oxscheduletick") == [(2,)]


@needs_tasks
@pytest.mark.parametrize("other", ["celery", "django_q2", "huey"])
def test_the_task_that_replaces_a_task_runs(shop, monkeypatch, settings, other):
    from django_pgqueue.tasks import consuming

    settings.TASKS = page("moving_from_celery", "TASKS = ")["TASKS"]
    queue("default").create()
    consuming.register()
    guide = ModuleType("guide")  # a task is looked up by its module
    monkeypatch.setitem(sys.modules, "guide", guide)
    names = page(f"moving_from_{other}", "@task(", vars(guide))

    order = names["place"]("A-7")
    drain("default")

    order.refresh_from_db()
    assert order.note == "charged"


def test_what_waits_in_the_broker_of_celery_moves_with_its_delay(shop):
    celery = pytest.importorskip("celery")
    broker = f"memory://{uuid.uuid4()}"
    app = celery.Celery("shop", broker=broker)

    @app.task(name="shop.tasks.charge")
    def charge(order_id: int) -> None: ...

    @app.task(name="shop.tasks.post")
    def post(order_id: int) -> None: ...

    charge.delay(7)
    post.delay(8)
    charge.apply_async(kwargs={"order_id": 9}, countdown=3600)
    queue("charges").create()
    names = page("moving_from_celery", "kombu")

    known = {"shop.tasks.charge": names["send_charge"]}
    first, again = (names["move"](broker, "celery", known) for _ in range(2))

    assert (first, again) == ((2, ["shop.tasks.post"]), (0, ["shop.tasks.post"]))
    assert [message.body["order"] for message in Message.objects.order_by("pk")] == [7, 9]
    now, later = LiveMessage.objects.order_by("pk")
    assert (now.state, later.state) == ("PENDING", "SCHEDULED")
    assert later.vt > dt.datetime.now(dt.timezone.utc) + dt.timedelta(minutes=50)
