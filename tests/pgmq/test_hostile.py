"""Hostile arguments of PGMQ's functions: what PGMQ does, or a clear error; never damage."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from django.db import DatabaseError, transaction

from django_pgqueue import queue
from django_pgqueue.models import Message, Queue
from tests.conftest import run_sql
from tests.pgmq.conftest import call

LONG_GROUP = "jsonb_build_object('x-pgmq-group', repeat('x', 300))"

#: Hostile values by the name or else the type of a parameter, as SQL.
HOSTILE = {
    "boolean": ["NULL", "true", "false"],
    "integer": ["NULL", "'-2147483648'", "-1", "0", "2147483647"],
    "bigint": ["NULL", "'-9223372036854775808'", "-1", "0", "9223372036854775807"],
    "bigint[]": [
        *("NULL", "'{}'", "'{NULL}'", "'{{1,2},{3,4}}'", "'[5:6]={1,2}'"),
        "'{-9223372036854775808,9223372036854775807}'",
    ],
    "text": [
        *("NULL", "''", "'nope'", "'orders; --'", "repeat('x', 10000)", "'infinity'", "'%s'"),
        *("'-infinity'", "'2147483648'", "'-9223372036854775808'", "'99999999999999999999'"),
        *("'NaN'", "'ä'", "E'a\\nb'", "'1e3'", "'10000-01-01'", "'294276-01-01'", "'{1,NULL}'"),
        *("'1 day'", "'-3 days'", "'0 seconds'", "'178000000 years'"),
    ],
    "jsonb": [
        *("NULL", "'null'", "'[]'", "'5'", "'\"x\"'", "'{\"x-pgmq-group\": [1]}'", LONG_GROUP),
        *("'{\"x-pgmq-group\": null}'", '\'{"x-pgmq-group": ""}\''),
    ],
    "jsonb[]": [
        *("NULL", "'{}'", "ARRAY[NULL]", "ARRAY['null']", "ARRAY[ARRAY['1'], ARRAY['2']]"),
        *("ARRAY['1', '2', '3']", "'[5:5]={1}'", f"ARRAY[{LONG_GROUP}]"),
    ],
    "base": [],
    "timestamp with time zone": [
        *("NULL", "'infinity'", "'-infinity'", "'10000-01-01Z'", "'0001-01-01Z'"),
        *("'4713-01-01 BC'", "'294276-01-01'", "'9999-12-31Z'"),
    ],
}
for named in ("queue_name", "table_name", "routing_key", "pattern", "prefix"):
    HOSTILE[named] = ["NULL", "''", "'orders; --'", "repeat('x', 300)", "'%s'", "'ä'", "'{1,NULL}'"]

#: Values that a function accepts, by the name or else the type of a parameter.
GOOD = {
    "boolean": "false",
    "integer": "1",
    "bigint": "1",
    "bigint[]": "'{1}'",
    "text": "'orders'",
    "jsonb": "'{}'",
    "jsonb[]": "ARRAY['{}']",
    "timestamp with time zone": "now()",
    "delay text": "'0'",
    "vt text": "'0'",
    "msg_id text": "'1'",
    "prefix text": "'q'",
    "partition_interval text": "'1 day'",
    "retention_interval text": "'1 day'",
    "base bigint": "0",
}
#: Errors that say which argument is wrong. The others would be errors inside our code.
CLEAR = re.compile(
    r'relation "pgmq\.q_.*" does not exist|(pgqueue: queue|Queue) .* does not exist'
    r"|queue name .*|\w+ cannot be .*|msgs cannot be NULL or empty|headers array length .*"
    r"|(routing_key|pattern) (cannot|length|contains) .*|LIMIT must not be negative"
    r'|null value in column "vt" of relation "q_orders" .*'  # as PGMQ
    r'|value for domain pgqueue_\w+ violates check constraint "pgqueue_(time_range|key_length)"'
    r'|invalid input syntax for type (bigint|interval|timestamp with time zone): ".*'
    r'|value ".*" is out of range for type (integer|bigint)|interval (field value )?out of range.*'
    r'|(date/time field value|timestamp) out of range: ".*"|\w+_interval must be .*'
    r"|throttle_interval_ms must be .*|delay cannot be negative.*|use manage.py pgqueue_partition.*"
    r'|Queue ".*" does not have notify_insert enabled.*',
    re.DOTALL,
)


@pytest.fixture
def orders_of_a_client(pgmq):
    """A queue whose msg_ids are not the messages' ids, with some messages in flight."""
    Message.objects.create_queue("mails")
    queue("mails").send_batch([1, 2, 3])
    pgmq("create('orders')")
    pgmq("bind_topic('orders', 'orders')")
    pgmq("send_batch('orders', array_fill('1'::jsonb, ARRAY[30]))")
    pgmq("read('orders', 30, 2)")


def calls() -> Iterator[str]:
    """Every public function, with one hostile argument at a time."""
    functions = run_sql(
        """
        SELECT proname::text, proargnames, ARRAY(
            SELECT format_type(kind, NULL) FROM unnest(proargtypes) WITH ORDINALITY AS p (kind, n)
            ORDER BY n)
        FROM pg_proc WHERE pronamespace = 'pgmq'::regnamespace
          AND prorettype <> 'trigger'::regtype AND proname !~ '^_' ORDER BY oid::regprocedure::text
        """
    )
    for function, names, kinds in functions:
        good = [
            GOOD.get(f"{name} {kind}", GOOD[kind])
            for name, kind in zip(names or (), kinds, strict=False)
        ]
        for place, kind in enumerate(kinds):
            for hostile in HOSTILE.get(names[place], HOSTILE[kind]):
                given = [*good[:place], hostile, *good[place + 1 :]]
                typed = ", ".join(f"({v})::{k}" for v, k in zip(given, kinds, strict=True))
                yield f"{function}({typed})"


def problem_of(text: str) -> str | None:
    """Make a call, then use the queue. Returns what is wrong with the error or the queue, if
    anything is, and rolls back."""
    try:
        with transaction.atomic():
            run_sql("SET LOCAL statement_timeout = '10s'")
            try:
                with transaction.atomic():
                    call(text.replace("%", "%%"))
            except DatabaseError as error:
                said = str(error.__cause__)
                if not CLEAR.match(said):
                    return said
            if not text.startswith(("drop_queue", "purge_queue")):
                call("send('orders', '{}')")
                call("read('orders', 30, 1)")
            call("list_notify_insert_throttles()")
            call("metrics_all()")
            for each in Queue.objects.all():
                assert each.retention is None or each.retention.total_seconds() > 0
            run_sql("SELECT * FROM pgqueue_live")
            transaction.set_rollback(True)
    except Exception as error:
        return f"afterwards: {error}"
    return None


@pytest.mark.usefixtures("orders_of_a_client")
def test_no_argument_is_an_error_inside_a_function_or_leaves_damage():
    problems = {text: problem for text in calls() if (problem := problem_of(text)) is not None}

    assert problems == {}


@pytest.mark.parametrize("given", ["infinity", "-3 days", "0 seconds", "999 ms", "2000 years"])
@pytest.mark.parametrize("argument", ["retention_interval", "partition_interval"])
@pytest.mark.usefixtures("pgmq")
def test_a_span_is_checked_before_a_queue_is_made(given, argument):
    """A retention of -3 days used to be stored, and the next maintenance deleted the archive."""
    with (
        pytest.raises(DatabaseError, match=rf"{argument} must|invalid input"),
        transaction.atomic(),
    ):
        call(f"create_partitioned('sales', {argument} => %s)", given)

    assert not Queue.objects.filter(name="sales").exists()


def test_the_highest_msg_id_is_the_id_of_no_message(orders_of_a_client):
    highest = 2**63 - 1
    for operation in ("archive", "delete"):
        assert call(f"{operation}('orders', %s::bigint)", highest) == [(False,)]
        [settled] = call("read('orders', 30, 1)")
        assert call(f"{operation}('orders', %s::bigint[])", [highest, settled[0]]) == [settled[:1]]
    assert call("set_vt('orders', %s::bigint, 5)", highest) == []
