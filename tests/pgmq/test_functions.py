"""PGMQ's functions and Django's methods work on the same queues."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import count

import pytest
from django.core.management import call_command
from django.db import DatabaseError, transaction
from django.urls import reverse

from django_pgqueue import queue
from django_pgqueue.errors import QueueNotFound
from django_pgqueue.models import ArchivedMessage, History, Message, Queue
from django_pgqueue.testing import travel
from django_pgqueue.worker.maintenance import Maintenance
from tests.actors import begin, commit, execute
from tests.actors import call as call_
from tests.conftest import run_sql
from tests.pgmq.conftest import call


def refused(text: str, match: str) -> None:
    with pytest.raises(DatabaseError, match=match), transaction.atomic():
        call(text)


def ids(rows):
    return [row[0] for row in rows]


@pytest.fixture
def made(pgmq):
    """A queue that a client made, after messages of another queue."""
    Message.objects.create_queue("mails")
    queue("mails").send_batch([1, 2, 3])
    pgmq("create('orders')")
    return pgmq


def test_a_queue_made_by_a_client_is_a_queue_of_django(made):
    found = Queue.objects.get(name="orders")
    assert (found.visibility_timeout, found.max_deliveries, found.unlogged) == (30, 20, False)
    assert made("list_queues()")[-1][:3] == ("orders", False, False)
    assert run_sql("SELECT queue_name FROM pgmq.meta") == [("mails",), ("orders",)]


def test_msg_ids_of_a_queue_made_by_a_client_begin_with_1(made):
    assert ids(made("send('orders', '{}')")) == [1]
    assert ids(made("send_batch('orders', ARRAY['1', '2']::jsonb[])")) == [2, 3]


def test_msg_ids_of_a_queue_made_by_django_are_the_messages_ids(pgmq, orders):
    pk = orders.send(1)
    assert ids(pgmq("read('orders', 30, 1)")) == [pk]


def test_a_queue_made_anew_does_not_inherit_the_offset(made):
    queue("orders").send(1)
    Message.objects.drop_queue("orders")
    Message.objects.create_queue("orders")
    pk = queue("orders").send(1)
    assert ids(made("read('orders', 30, 1)")) == [pk]


def test_what_a_client_sends_django_reads(made):
    made("""send('orders', '{"a": 1}', '{"x-pgmq-group": "7", "k": 1}'::jsonb)""")
    [message] = queue("orders").read()
    assert (message.body, message.headers["k"], message.group) == ({"a": 1}, 1, "7")


@pytest.mark.parametrize("unlogged", [False, True])
def test_what_django_sends_a_client_reads_and_archives(pgmq, unlogged):
    Message.objects.create_queue("orders", unlogged=unlogged)
    pgmq("create('orders')")  # makes its views
    pk = queue("orders").send({"a": 1}, headers={"k": 1})
    [row] = pgmq("read('orders', 30, 10)")
    assert (row[0], row[1], row[5], row[6]) == (pk, 1, '{"a": 1}', '{"k": 1}')
    assert row[4] - row[3] == dt.timedelta(seconds=30)
    assert pgmq("archive('orders', %s)", pk) == [(True,)]
    assert ArchivedMessage.objects.get(pk=pk).state == "COMPLETED"
    assert ids(run_sql("SELECT msg_id FROM pgmq.a_orders")) == [pk]


@pytest.mark.parametrize("qty", [1, 15, 16, 100])
@pytest.mark.parametrize("operation", ["archive", "delete"])
def test_a_batch_that_was_read_is_settled_once(made, operation, qty):
    sent = ids(made("send_batch('orders', array_fill('1'::jsonb, ARRAY[%s]))", qty))
    assert ids(made("read('orders', 30, %s)", qty)) == sent
    assert made("read('orders', 30, 1)") == []
    half = sent[: qty // 2]
    assert ids(made(f"{operation}('orders', %s::bigint[])", half)) == half
    assert ids(made(f"{operation}('orders', %s::bigint[])", sent)) == sent[qty // 2 :]
    assert made("metrics('orders')")[0][1] == 0
    assert len(run_sql("SELECT msg_id FROM pgmq.a_orders")) == (
        qty if operation == "archive" else 0
    )


@pytest.mark.parametrize("state", ["ready", "delayed", "waiting", "leased", "batched"])
@pytest.mark.parametrize("operation", ["archive", "delete", "set_vt"])
def test_a_message_is_settled_by_id_in_any_state(made, operation, state):
    group = """'{"x-pgmq-group": "7"}'::jsonb, """ if state == "waiting" else ""
    for _ in range(20):
        [(last,)] = made(f"send('orders', '1', {group}{60 if state == 'delayed' else 0})")
    if state in ("leased", "batched"):
        [*_, last] = ids(made("read('orders', 30, %s)", 1 if state == "leased" else 20))
    if operation == "set_vt":
        [row] = made("set_vt('orders', %s, 600)", last)
        assert row[0] == last
        assert row[4] > dt.datetime.now(dt.timezone.utc) + dt.timedelta(seconds=500)
        assert made("set_vt('orders', 999, 5)") == []
    else:
        assert made(f"{operation}('orders', %s)", last) == [(True,)]
        assert made(f"{operation}('orders', %s)", last) == [(False,)]
        assert made("metrics('orders')")[0][1] == 19


def test_an_expired_batch_is_read_again(made):
    made("send_batch('orders', array_fill('1'::jsonb, ARRAY[20]))")
    assert len(made("read('orders', 0, 20)")) == 20
    assert {row[1] for row in made("read('orders', 30, 20)")} == {2}


def test_a_condition_selects_by_the_body(made):
    made("""send_batch('orders', ARRAY['{"a": 1}', '{"a": 2}']::jsonb[])""")
    assert ids(made("""read('orders', 30, 10, '{"a": 2}')""")) == [2]


def test_a_poll_finds_a_message_that_becomes_due_meanwhile(made):
    made("send('orders', '1', 1)")
    assert ids(made("read_with_poll('orders', 30, 1, 10, 50)")) == [1]


def test_a_popped_message_is_deleted(made):
    made("send_batch('orders', ARRAY['1', '2', '3']::jsonb[])")
    assert [row[:2] for row in made("pop('orders', 2)")] == [(1, 0), (2, 0)]
    assert made("metrics('orders')")[0][1] == 1


@pytest.mark.parametrize("dead", [True, False])
def test_an_exhausted_message_is_dead_lettered_as_by_our_own_read(pgmq, dead):
    if dead:
        Message.objects.create_queue("dead")
    Message.objects.create_queue(
        "orders", max_deliveries=2, dead_letter_queue="dead" if dead else None
    )
    pk = queue("orders").send({"a": 1})
    for _ in range(2):
        assert ids(pgmq("read('orders', 0, 1)")) == [pk]
    assert pgmq("read('orders', 0, 1)") == []
    if dead:
        [letter] = queue("dead").read()
        assert letter.headers["x-dead-letter"]["reason"] == "max_deliveries"
    else:
        assert ArchivedMessage.objects.get(pk=pk).state == "FAILED"


def send_groups(*groups: str) -> None:
    for group in groups:
        call("send('orders', %s::jsonb, %s::jsonb)", f'"{group}"', f'{{"x-pgmq-group": "{group}"}}')


def bodies(rows):
    return "".join(row[5].strip('"') for row in rows)


@pytest.mark.parametrize(
    ("function", "first", "second"),
    [
        ("read_grouped", "aabb", "c"),
        ("read_grouped_rr", "abca", ""),
        ("read_grouped_head", "abc", ""),
        ("read", "abc", ""),
    ],
)
def test_grouped_reads_keep_the_order_of_each_group(made, function, first, second):
    send_groups("a", "b", "a", "b", "c")
    assert bodies(made(f"{function}('orders', 30, 4)")) == first
    assert bodies(made(f"{function}('orders', 30, 4)")) == second


@pytest.mark.parametrize(
    "text",
    [
        "read('orders', 0, 20)",
        "read('orders', 0, 20, '1')",
        "read_grouped('orders', 0, 20)",
        "read_grouped_rr('orders', 0, 20)",
        "pop('orders', 20)",
    ],
)
def test_no_call_returns_a_message_twice(made, text):
    """Not even one whose lease ends at once, or that other statements of the call delay."""
    made("send_batch('orders', ARRAY['1', '1', '1']::jsonb[])")
    run_sql("UPDATE pgqueue_queue SET max_deliveries = 2 WHERE name = 'orders'")
    for _ in range(2):
        made("read('orders', 0, 1)")
    made("set_vt('orders', 2, 0)")
    for _ in range(3):
        made("""send('orders', '1', '{"x-pgmq-group": "a"}'::jsonb)""")
    behind = [5, 6] if "grouped" in text else []
    assert ids(made(text)) == [2, 3, 4, *behind]


def test_a_group_goes_on_when_its_head_is_archived(made):
    send_groups("a", "a")
    [row] = made("read('orders', 30, 5)")
    assert made("read('orders', 30, 5)") == []
    made("archive('orders', %s)", row[0])
    assert ids(made("read('orders', 30, 5)")) == [2]


def test_groups_take_turns(committed_pgmq):
    committed_pgmq("create('orders')")
    send_groups("a", "a", "a", "b", "b", "c")

    seen = ""
    while rows := committed_pgmq("read('orders', 30, 1)"):
        seen += bodies(rows)
        committed_pgmq("archive('orders', %s)", rows[0][0])

    assert seen == "abcaba"


@pytest.mark.parametrize("both", [False, True])
def test_a_reader_in_a_transaction_leaves_groups_to_a_second_reader(committed_pgmq, actor, both):
    committed_pgmq("create('orders')")
    send_groups("a", "a", "a", "b")
    actor.do(begin)
    assert len(actor.do(execute, "SELECT msg_id FROM pgmq.read('orders', 30, 1)")) == 1
    with transaction.atomic() if both else nullcontext():
        assert bodies(committed_pgmq("read('orders', 30, 1)")) == "b"
    actor.do(commit)


def test_a_read_sent_together_with_its_begin_keeps_no_ready_message_from_others(
    committed_pgmq, actor
):
    """The read takes itself to be alone in its transaction, and locks all groups."""
    committed_pgmq("create('orders')")
    send_groups("a", "a")
    together = "BEGIN; SELECT msg_id FROM pgmq.read('orders', 30, 1)"
    actor.do(execute, together)
    send_groups("a", "b")
    committed_pgmq("send('orders', '\"c\"')")
    assert bodies(committed_pgmq("read('orders', 30, 5)")) in ("c", "bc")
    actor.do(execute, "COMMIT")
    assert bodies(committed_pgmq("read('orders', 30, 5)")) in ("", "b")
    committed_pgmq("archive('orders', 1)")
    assert ids(committed_pgmq("read('orders', 30, 5)")) == [2]


def test_metrics_count_what_is_in_the_queue(made):
    made("send_batch('orders', ARRAY['1', '2', '3']::jsonb[])")
    made("send('orders', '4', 60)")
    made("read('orders', 30, 1)")
    [row] = made("metrics('orders')")
    assert (row[0], row[1], row[4], row[6]) == ("orders", 4, 4, 2)
    assert [each[0] for each in made("metrics_all()")] == ["mails", "orders"]


def test_a_purge_returns_how_many(made):
    made("send_batch('orders', array_fill('1'::jsonb, ARRAY[20]))")
    made("read('orders', 30, 16)")
    assert made("purge_queue('orders')") == [(20,)]


def test_a_dropped_queue_is_gone_for_all_and_its_tables_go_with_maintenance(committed_pgmq):
    committed_pgmq("create('orders')")
    committed_pgmq("send('orders', '1')")
    assert committed_pgmq("drop_queue('orders')") == [(True,)]
    assert committed_pgmq("drop_queue('orders')") == [(False,)]
    assert committed_pgmq("list_queues()") == []
    committed_pgmq("create('orders')")
    assert ids(committed_pgmq("send('orders', '2')")) == [1]
    Message.objects.maintain_all()
    assert [each.name for each in Queue.objects.all()] == ["orders"]
    assert [row[5] for row in committed_pgmq("read('orders', 30, 5)")] == ["2"]


@pytest.mark.parametrize("partitioned", [False, True])
def test_a_process_that_remembers_a_dropped_queue_sends_nothing_there(
    committed_pgmq, actor, partitioned
):
    committed_pgmq("create('orders')")
    if partitioned:
        queue("orders").repartition(dt.timedelta(days=1))
    pk = actor.do(call_, "send", "orders", 1)
    table = Queue.objects.get().tables["message"]
    committed_pgmq("drop_queue('orders')")
    with pytest.raises(QueueNotFound):
        actor.do(call_, "send", "orders", 2)
    assert run_sql(f"SELECT id FROM {table}") == [(pk,)]


def test_a_dropped_queue_that_others_still_read_waits_for_a_later_round(committed_pgmq, actor):
    committed_pgmq("create('orders')")
    pk = Queue.objects.get().pk
    actor.do(begin)
    actor.do(execute, f"SELECT count(*) FROM pgqueue_message_q{pk}")
    committed_pgmq("drop_queue('orders')")
    [maintained] = Message.objects.maintain_all(patience=0.1)
    assert (maintained.queue_name, maintained.error) == (f"dropped-{pk}", "")
    actor.do(commit)
    assert Message.objects.maintain_all() == []


def test_a_consumer_drops_the_tables_of_a_queue_that_a_client_dropped(committed_pgmq):
    committed_pgmq("create('orders')")
    committed_pgmq("drop_queue('orders')")
    maintenance = Maintenance(["default"])
    maintenance.tick()
    maintenance.tick()
    maintenance.leave()
    assert not Queue.objects.exists()


@pytest.mark.parametrize("change", ["drop_queue('orders')", "create('more')"])
def test_a_change_of_queues_in_an_open_transaction_stops_no_other_queue(
    committed_pgmq, actor, change
):
    committed_pgmq("create('orders')")
    committed_pgmq("create('mails')")
    actor.do(begin)
    actor.do(execute, f"SELECT pgmq.{change}")
    committed_pgmq("send('mails', '1')")
    committed_pgmq("pop('mails')")
    queue("mails").send(1)
    assert len(queue("mails").read()) == 1
    assert Message.objects.filter(queue__name="mails").count() == 1
    actor.do(commit)


def test_a_partitioned_queue_keeps_archived_messages_for_its_retention(committed_pgmq):
    committed_pgmq("create_partitioned('orders', '1 day', '7 days')")
    committed_pgmq("create_partitioned('mails', '10000', '100000')")
    assert Queue.objects.get(name="mails").retention is None
    committed_pgmq("send_batch('orders', ARRAY['1', '2']::jsonb[])")
    committed_pgmq("archive('orders', ARRAY[1, 2]::bigint[])")
    old = Queue.objects.get(name="orders")
    run_sql(
        f"UPDATE {old.tables['archive']} SET archived_at = archived_at - interval '8 days' "
        f"WHERE id = (SELECT min(id) FROM {old.tables['archive']})"
    )
    Message.objects.maintain_all()
    assert [row[6] for row in run_sql("SELECT * FROM pgmq.a_orders")] == ["2"]


def test_a_queue_that_gets_partitions_goes_on(committed_pgmq):
    committed_pgmq("create('orders')")
    committed_pgmq("enable_notify_insert('orders', 7)")
    committed_pgmq("send('orders', '1')")
    assert queue("orders").repartition(dt.timedelta(days=1))
    committed_pgmq("send('orders', '2')")
    assert committed_pgmq("list_queues()")[0][:2] == ("orders", True)
    [(name, throttle, notified)] = committed_pgmq("list_notify_insert_throttles()")
    assert (name, throttle, notified.year > 1970) == ("orders", 7, True)
    assert ids(committed_pgmq("read('orders', 30, 5)")) == [1, 2]
    assert ids(run_sql("SELECT msg_id FROM pgmq.q_orders ORDER BY 1")) == [1, 2]
    assert ids(committed_pgmq("archive('orders', ARRAY[1, 2]::bigint[])")) == [1, 2]


def test_history_and_the_admin_see_what_clients_do(committed_pgmq, admin_client):
    committed_pgmq("create('orders')")
    committed_pgmq("send_batch('orders', ARRAY['\"first\"', '\"second\"']::jsonb[])")
    committed_pgmq("archive('orders', ARRAY[1]::bigint[])")
    Message.objects.maintain_all()
    committed_pgmq("send('orders', '3')")
    run_sql("SELECT pg_stat_force_next_flush()")
    [row] = History.objects.filter(queue__name="orders")
    assert row.depth == 1
    for body in ("first", "second"):
        pk = Message.objects.get(body=body).pk
        page = admin_client.get(reverse("admin:django_pgqueue_message_change", args=[pk]))
        assert body in page.content.decode()


def test_django_drops_a_queue_with_views_and_a_notifying_trigger(made):
    made("enable_notify_insert('orders', 0)")
    made("send('orders', '1')")
    assert Message.objects.drop_queue("orders")
    made("create('orders')")
    assert run_sql("SELECT * FROM pgmq.q_orders") == []


def test_topics_use_the_grammar_of_pgmq(made):
    made("bind_topic('logs.#', 'orders')")
    made("bind_topic('logs.*', 'orders')")
    made("bind_topic('logs.*', 'mails')")
    assert made("send_topic('logs.eu', '1')") == [(2,)]
    assert made("send_topic('logs.eu.de', '1')") == [(1,)]
    assert made("send_topic('logs', '1')") == [(0,)]
    assert made("unbind_topic('logs.#', 'orders')") == [(True,)]
    Message.objects.drop_queue("orders")
    Message.objects.create_queue("orders")
    assert made("send_topic('logs.eu', '1')") == [(1,)]


@pytest.mark.parametrize(
    "text",
    [
        "send($1, $2, $3)",
        "send_batch($1, ARRAY[$2]::jsonb[], $3)",
        "set_vt($1, 1, $3)",
        "set_vt($1, $4, $3)",
        "set_vt($1, $5, $3)",
    ],
)
def test_a_client_that_names_no_types_finds_one_function(made, text):
    made("send('orders', '1')")
    # Literals without a type are resolved as parameters without one.
    literals = {"$1": "'orders'", "$2": "'{}'", "$3": "'5'", "$4": "'1'", "$5": "'{1}'"}
    for parameter, literal in literals.items():
        text = text.replace(parameter, literal)
    assert len(made(text)) == 1


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("send('none', '1')", r"pgmq.q_none\" does not exist"),
        ("read('orders', NULL, 1)", "not-null"),
        ("read('orders', 1, -1)", "must not be negative"),
        ("send_batch('orders', ARRAY[]::jsonb[])", "cannot be NULL or empty"),
        ("create('a b')", "not valid"),
        ("create_partitioned('mine', 'often')", "invalid input syntax for type interval"),
        ("create_partitioned('mine', '1 day', 'ever')", "invalid input syntax for type interval"),
        ("create(repeat('a', 48))", "too long"),
        ("convert_archive_partitioned('orders')", "pgqueue_partition"),
        ("bind_topic('a.**', 'orders')", "consecutive stars"),
        ("enable_notify_insert('orders', -1)", "non-negative"),
    ],
)
def test_bad_input_is_refused(made, text, match):
    refused(text, match)


def test_views_are_read_only(made):
    made("send('orders', '1')")
    with pytest.raises(DatabaseError, match="read-only view"), transaction.atomic():
        run_sql("DELETE FROM pgmq.q_orders")
    assert ids(run_sql("SELECT msg_id FROM pgmq.q_orders")) == [1]


def test_a_read_in_a_transaction_passes_groups_whose_heads_are_delayed(made):
    orders = queue("orders")
    orders.send_batch([0] * 150, group=[f"late {n}" for n in range(150)], delay=60)
    orders.send("now", group="now")

    [message] = made("read('orders', 60, 1)")

    assert '"now"' in message


@pytest.mark.parametrize("function", ["read", "read_grouped_rr", "pop"])
@pytest.mark.parametrize("settings", [{}, {"group_limit": 2}, {"limit": 5}])
def test_a_read_in_a_transaction_that_due_messages_fill_ends_beside_a_new_group(
    made, function, settings
):
    Queue.objects.filter(name="orders").update(**settings)
    orders = queue("orders")
    orders.send("due")
    orders.read(vt=0)
    orders.send("next", group="new")
    run_sql("SET LOCAL statement_timeout = '10s'")

    [message] = made("pop('orders')" if function == "pop" else f"{function}('orders', 60, 1)")
    [follower] = made("read('orders', 60, 1)")

    assert '"due"' in message
    assert '"next"' in follower


# Functions keep their plans for a session: made on small tables, they must be good on full ones.

CALLS = [
    "send('orders', '1')",
    "send('orders', '1', 60)",
    "send('orders', '1', '{\"x-pgmq-group\": \"new\"}'::jsonb)",
    "send_batch('orders', ARRAY['1', '2']::jsonb[])",
    "send_topic('a', '1')",
    "send_batch_topic('a', ARRAY['1', '2']::jsonb[])",
    "read('orders', 0, 1)",
    "read('orders', 0, 20)",
    "read('orders', 0, 5, '1')",
    "read_with_poll('orders', 0, 5)",
    "read_grouped('orders', 0, 5)",
    "read_grouped_with_poll('orders', 0, 5)",
    "read_grouped_rr('orders', 0, 5)",
    "read_grouped_rr_with_poll('orders', 0, 5)",
    "read_grouped_head('orders', 0, 5)",
    "read_grouped_head_with_poll('orders', 0, 5)",
    "pop('orders', 1)",
    "pop('orders', 20)",
    "archive('orders', {id})",
    "archive('orders', ARRAY[{id}, {id}]::bigint[])",
    "archive('orders', ARRAY(SELECT msg_id FROM pgmq.read('orders', 60, 20)))",
    "delete('orders', {id})",
    "delete('orders', ARRAY[{id}, {id}]::bigint[])",
    "set_vt('orders', {id}, 0)",
    "set_vt('orders', ARRAY[{id}, {id}]::bigint[], 0)",
    # In a group, behind its head.
    "set_vt('orders', {waiting}, 60)",
]


def waiting() -> int:
    """The msg_id of a message that waits in its group."""
    [(number,)] = run_sql(
        "SELECT max(w.id) - max(o.base) FROM pgqueue_waiting w "
        "JOIN pgmq.own_queue o USING (queue_id)"
    )
    return number or 0


def filled_in(text: str, numbers: Iterator[int]) -> str:
    text = re.sub("{id}", lambda _: str(next(numbers)), text)
    return text.replace("{waiting}", str(waiting()))


def rows_read() -> int:
    [(number,)] = run_sql(
        "SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::bigint "
        "FROM pg_stat_xact_all_tables WHERE relname ~ '^pgqueue_|^own_queue'"
    )
    return int(number)


def test_every_function_that_sends_reads_or_settles_is_in_the_test_of_plans(pgmq):
    found = run_sql(
        "SELECT DISTINCT proname::text FROM pg_proc WHERE pronamespace = 'pgmq'::regnamespace "
        "AND proname ~ '^(send|read|pop|archive|delete|set_vt)(_(?!messages)|$)'"
    )
    assert {name for (name,) in found} == {text.partition("(")[0] for text in CALLS}


# Autovacuum may take statistics of a table while it has a few rows.
FEW_ROWS = {
    "pgqueue_ready": "(id, turn, enqueued_at, queue_id, priority) "
    "SELECT n, n, now(), -n, 0 FROM generate_series(1, 60) n",
    "pgqueue_waiting": "(id, enqueued_at, queue_id, priority, group_key) "
    "SELECT n, now(), 0, 0, 'group' FROM generate_series(1, 3) n",
}


@pytest.mark.parametrize("mode", ["auto", "force_generic_plan"])
@pytest.mark.parametrize("table", [None, *FEW_ROWS])
def test_plans_made_on_small_tables_are_good_on_full_ones(made, mode, table):
    if table is not None:
        run_sql(f"INSERT INTO {table} {FEW_ROWS[table]}")
        run_sql(f"ANALYZE {table}")
        run_sql(f"DELETE FROM {table}")
    run_sql(f"SET LOCAL plan_cache_mode = {mode}")
    warming, numbers = count(1), count(5000)
    made("bind_topic('a', 'orders')")
    for text in CALLS:
        for _ in range(7):  # from the sixth on, PostgreSQL may keep a plan
            made(filled_in(text, warming))
    made("send_batch('orders', array_fill('1'::jsonb, ARRAY[10000]))")
    made("send_batch('orders', array_fill('1'::jsonb, ARRAY[10000]), 60)")
    queue("mails").send_batch([1] * 10_000)
    for group in range(100):
        queue("orders").send_batch([1] * 100, group=str(group))
    made("read('orders', 600, 2000)")

    for text in CALLS:
        text = filled_in(text, numbers)
        before = rows_read()
        found = made(text)
        assert rows_read() - before < 1000, text
        assert found, text


LIMITED = ["read('orders', 0, 1)", "read('orders', 0, 5, '1')", "read_grouped('orders', 0, 5)"]


@pytest.mark.parametrize("mode", ["auto", "force_generic_plan"])
@pytest.mark.parametrize("limits", [{"limit": 1000}, {"group_limit": 2}], ids=str)
def test_plans_of_a_queue_with_limits_made_on_small_tables_are_good_on_full_ones(
    made, mode, limits
):
    Queue.objects.filter(name="orders").update(**limits, max_deliveries=100)
    run_sql(f"SET LOCAL plan_cache_mode = {mode}")
    made("send('orders', '1')")
    for text in LIMITED:
        for _ in range(7):  # from the sixth on, PostgreSQL may keep a plan
            assert made(text)
    made("send_batch('orders', array_fill('1'::jsonb, ARRAY[10000]))")
    queue("mails").send_batch([1] * 10_000)
    for group in range(20):
        queue("orders").send_batch([1] * 100, group=str(group))

    for text in LIMITED:
        before = rows_read()
        assert made(text)
        assert rows_read() - before < 1000, text


# Supabase's schema pgmq_public: wrappers with an empty search path, which name each argument.

WRAPPERS = {
    "send(queue_name text, message jsonb, sleep_seconds integer DEFAULT 0) RETURNS SETOF bigint": (
        "send(queue_name := queue_name, msg := message, delay := sleep_seconds)"
    ),
    "send_batch(queue_name text, messages jsonb[], sleep_seconds integer DEFAULT 0) "
    "RETURNS SETOF bigint": (
        "send_batch(queue_name := queue_name, msgs := messages, delay := sleep_seconds)"
    ),
    "read(queue_name text, sleep_seconds integer, n integer) RETURNS SETOF pgmq.message_record": (
        "read(queue_name := queue_name, vt := sleep_seconds, qty := n)"
    ),
    "pop(queue_name text) RETURNS SETOF pgmq.message_record": "pop(queue_name := queue_name)",
    "archive(queue_name text, message_id bigint) RETURNS SETOF boolean": (
        "archive(queue_name := queue_name, msg_id := message_id)"
    ),
    "delete(queue_name text, message_id bigint) RETURNS SETOF boolean": (
        "delete(queue_name := queue_name, msg_id := message_id)"
    ),
}


def test_the_wrappers_of_supabase_work(made):
    run_sql("CREATE SCHEMA pgmq_public")
    for head, text in WRAPPERS.items():
        run_sql(
            f"CREATE FUNCTION pgmq_public.{head} LANGUAGE plpgsql SET search_path = '' AS "
            f"$$ BEGIN RETURN QUERY SELECT * FROM pgmq.{text}; END $$"
        )

    def public(text):
        return run_sql(f"SELECT * FROM pgmq_public.{text}")

    assert public("send(queue_name := 'orders', message := '1')") == [(1,)]
    assert public("send_batch(queue_name := 'orders', messages := '{2,3,4}')") == [(2,), (3,), (4,)]
    assert ids(public("read(queue_name := 'orders', sleep_seconds := 30, n := 2)")) == [1, 2]
    assert public("archive(queue_name := 'orders', message_id := 1)") == [(True,)]
    assert public("delete(queue_name := 'orders', message_id := 2)") == [(True,)]
    assert ids(public("pop(queue_name := 'orders')")) == [3]
    assert [message.body for message in queue("orders").read()] == [4]
    call_command("pgqueue_pgmq", "remove", verbosity=0)
    left = run_sql("SELECT proname FROM pg_proc WHERE pronamespace = 'pgmq_public'::regnamespace")
    assert {name for (name,) in left} == {"send", "send_batch", "archive", "delete"}


def late(orders, *numbers, **options):
    """Send messages that have expired by the time of a read; returns their ids."""
    found = [orders.send(number, expires=3600, **options) for number in numbers]
    run_sql(
        "UPDATE pgqueue_message SET expires_at = statement_timestamp() WHERE id = ANY(%s)", [found]
    )
    return found


READS = {
    "one": ("read('orders', 30, 1)", 1),
    "a batch": ("read('orders', 30, 20)", 2),
    "with a condition": ("""read('orders', 30, 20, '{"late": false}')""", 2),
    "pop one": ("pop('orders', 1)", 1),
    "pop many": ("pop('orders', 20)", 2),
    "grouped": ("read_grouped('orders', 30, 20)", 2),
    "in rounds": ("read_grouped_rr('orders', 30, 20)", 2),
}


@pytest.mark.parametrize("delayed", [False, True], ids=["ready", "delayed"])
@pytest.mark.parametrize("group", [None, "a"], ids=["alone", "in a group"])
@pytest.mark.parametrize("read", READS)
def test_a_client_gets_no_expired_message_but_those_behind_it(pgmq, orders, read, group, delayed):
    text, number = READS[read]
    options = {"group": group, "delay": 60 if delayed else 0}
    expired = late(orders, {"late": False}, {"late": False}, **options)
    fresh = [orders.send({"late": False}, **options) for _ in range(2)]
    if delayed:
        travel(61)

    found = ids(pgmq(text))
    while len(found) < number and (more := ids(pgmq(text))):
        found += more

    leases_heads = group and text.startswith("read(")
    assert found == fresh[: 1 if leases_heads else number]
    archived = ArchivedMessage.objects.filter(state="EXPIRED").values_list("id", "read_ct")
    assert set(archived) == {(pk, 0) for pk in expired}
    [(_, left, *_)] = pgmq("metrics('orders')")
    assert left == len(fresh) - (len(found) if "pop" in text else 0)


@pytest.mark.parametrize(
    "limits",
    [
        {"limit": 2},
        {"rate": "1/h", "burst": 2},
        {"group_limit": 2},
        {"group_rate": "1/h", "group_burst": 2},
    ],
    ids=lambda limits: next(iter(limits)),
)
def test_reads_by_clients_heed_limits(pgmq, orders, limits):
    Queue.objects.update(**limits)
    group = "a" if any("group" in name for name in limits) else None
    for number in range(5):
        orders.send(number, group=group)

    assert [len(pgmq(f"read('orders', 30, {qty})")) for qty in (1, 5, 5)] == [1, 1, 0]
    assert orders.read(qty=5) == []


def test_a_poll_that_finds_a_message_late_spaces_the_next_start_from_then(made):
    """Its statement began a second before the start."""
    Queue.objects.filter(name="orders").update(rate="1/h")
    made("send('orders', '1', 1)")

    assert len(made("read_with_poll('orders', 30, 1, 10, 50)")) == 1

    [(apart,)] = run_sql(
        "SELECT g.free_at - d.last_read_at FROM pgqueue_group g"
        " JOIN pgqueue_deferred d USING (queue_id) WHERE g.group_key = ''"
    )
    assert apart >= dt.timedelta(hours=1)
