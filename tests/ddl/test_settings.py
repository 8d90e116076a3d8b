"""Rows of settings that cannot be: refused by the database, and with a clear text before it."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection, models, transaction

from django_pgqueue import queue
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.models import (
    Binding,
    BulkAction,
    BulkActionPart,
    GroupSetting,
    History,
    Lake,
    Message,
    Process,
    Queue,
    Rollup,
)
from django_pgqueue.tables.queue import SETTINGS
from tests.conftest import run_sql
from tests.factories import QueueFactory

DAY = dt.timedelta(days=1)
COUNTS = [0, -1, 1, 2**31 - 1]
SLOTS = [0, -1, 1, 10_000, 10_001, 2**31 - 1]
SPANS = [
    dt.timedelta(0),
    -DAY,
    dt.timedelta(milliseconds=999),
    dt.timedelta(seconds=1),
    365_000 * DAY,
    365_001 * DAY,
    dt.timedelta.max,
]
RATES = ["0/s", "1/s", "01/s", "-1/s", "1/x", "1/s\n", "1000000000/s", "999999999/d", "1 /s"]
NAMES = ["a", "a b", "", "ä", "a\n", "A.b_c-1", "x" * 63]
PATTERNS = ["#", "*.a", "a..b", "", "a.", "a b", "a\n", "a*", "a.#.b"]
KEYS = ["", "a", "a\nb", "ä" * 255, "x" * 256]

#: For each column: values at the borders of what is allowed.
COLUMNS: dict[type[models.Model], dict[str, list[Any]]] = {
    Queue: {
        "name": NAMES,
        "visibility_timeout": COUNTS,
        "max_deliveries": COUNTS,
        **dict.fromkeys(("retention", "partition_interval", "unique_window", "age_limit"), SPANS),
        **dict.fromkeys(("limit", "burst", "group_limit", "group_burst"), SLOTS),
        **dict.fromkeys(("rate", "group_rate"), RATES),
    },
    GroupSetting: {"group_key": KEYS, "limit": SLOTS, "rate": RATES, "burst": SLOTS},
    Binding: {"pattern": PATTERNS},
}

CASES = [
    pytest.param(model, column, value, id=f"{model.__name__} {column} {value!r:.20}")
    for model, columns in COLUMNS.items()
    for column, values in columns.items()
    for value in values
]


def row_of(model: type[models.Model], column: str) -> Any:
    """Return a saved row of the model, in which any allowed value of the column may be set."""
    made = QueueFactory(name="orders", rate="1/s", group_rate="1/s")
    if model is GroupSetting:
        rate = None if column == "limit" else "1/s"
        return GroupSetting.objects.create(queue=made, group_key="g", rate=rate)
    return Binding.objects.create(queue=made, pattern="a") if model is Binding else made


def is_stored(model: type[models.Model], row: Any, **values: Any) -> str | None:
    """Try to write the values by SQL. Returns the name of the CHECK that refuses it, or None."""
    try:
        with transaction.atomic():
            # Not Queue's own queryset, which refuses to update some columns.
            models.QuerySet(model).filter(pk=row.pk).update(**values)
    except IntegrityError as error:
        cause: Any = error.__cause__
        return str(cause.diag.constraint_name)
    return None


@pytest.mark.parametrize(("model", "column", "value"), CASES)
def test_sql_save_and_forms_allow_the_same_values(db, model, column, value):
    row = row_of(model, column)

    refused = is_stored(model, row, **{column: value})

    if column == "burst" and model is GroupSetting:
        row.limit = None
    setattr(row, column, value)
    try:
        row.full_clean()
    except ValidationError:
        by_form = True
    else:
        by_form = False
    try:
        with transaction.atomic():
            row.save()
    except InvalidArgument:
        by_save = True
    else:
        by_save = False
    assert (by_form, by_save) == (bool(refused), bool(refused))
    if refused is not None:
        assert refused.startswith(f"{model._meta.db_table}_{column}")


@pytest.mark.parametrize("infinite", ["infinity", "-infinity"])
@pytest.mark.parametrize(
    "column", ["retention", "partition_interval", "unique_window", "age_limit"]
)
def test_an_endless_span_is_refused(orders, column, infinite):
    """PostgreSQL 17 has infinite intervals; earlier ones do not parse them."""
    with pytest.raises(Exception, match=f"pgqueue_queue_{column}|invalid input syntax"):
        run_sql(f"UPDATE pgqueue_queue SET {column} = '{infinite}'")


@pytest.mark.parametrize(
    ("values", "check"),
    [
        ({"burst": 2}, "pgqueue_queue_burst_needs_rate"),
        ({"group_burst": 2}, "pgqueue_queue_group_burst_needs_group_rate"),
        (
            {"group_burst": 2, "group_rate": "1/s", "group_limit": 2},
            "pgqueue_queue_group_burst_or_group_limit",
        ),
    ],
)
def test_limits_that_contradict_each_other_are_refused_everywhere(orders, values, check):
    row = Queue.objects.get()

    assert is_stored(Queue, row, **values) == check

    for name, value in values.items():
        setattr(row, name, value)
    with pytest.raises(InvalidArgument, match="burst"):
        row.save()
    with pytest.raises(ValidationError, match="burst") as refused:
        row.full_clean()
    assert len(refused.value.messages) == 1


@pytest.mark.parametrize(
    ("values", "check"),
    [
        ({"burst": 2}, "pgqueue_group_setting_burst_needs_rate"),
        ({"rate": "1/s", "burst": 2, "limit": 2}, "pgqueue_group_setting_burst_or_limit"),
    ],
)
def test_so_are_those_of_a_group(orders, values, check):
    row = GroupSetting.objects.create(queue=Queue.objects.get(), group_key="g")

    assert is_stored(GroupSetting, row, **values) == check

    with pytest.raises(InvalidArgument, match="burst"):
        GroupSetting.objects.create(queue=row.queue, group_key="h", **values)
    with pytest.raises(ValidationError, match="burst"):
        GroupSetting(queue=row.queue, group_key="h", **values).full_clean()


def test_a_refused_setting_leaves_the_queue_readable(orders):
    """A rate of zero used to fail every read with a division by zero."""
    row = Queue.objects.get()
    orders.send(1)

    for refused in ({"rate": "0/s"}, {"limit": 0}, {"group_rate": "0/s"}):
        assert is_stored(Queue, row, **refused)
        with pytest.raises(InvalidArgument):
            GroupSetting.objects.create(
                queue=row,
                group_key="g",
                **{k.removeprefix("group_"): v for k, v in refused.items()},
            )

    assert [message.body for message in orders.read(in_transaction=True)] == [1]


def test_a_queue_is_not_its_own_dead_letter_queue(orders):
    row = Queue.objects.get()

    assert is_stored(Queue, row, dead_letter_queue=row) == "pgqueue_queue_dead_letter_queue"


def test_save_takes_seconds_as_create_queue_does(db):
    made = Queue.objects.create(name="orders", retention=3600, age_limit=dt.timedelta(hours=1))

    assert made.retention == made.age_limit == dt.timedelta(hours=1)
    assert Queue.objects.filter(retention=dt.timedelta(hours=1)).exists()


def test_save_computes_expressions_in_the_database(orders):
    row = Queue.objects.get()
    row.max_deliveries = models.F("max_deliveries") + 1
    row.save()

    assert Queue.objects.get().max_deliveries == 21


HOSTILE_LISTS = ["5", '"orders"', "{}", "null", "[5]", '["a", null]', "[[]]"]
HOSTILE_TALLIES = ["5", "[]", "null", '{"1": "2"}', '{"1": -1}', '{"1": 1.5}', '{"1": 1e99}']


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        *(("process", c, v) for c in ("queues", "schedules") for v in HOSTILE_LISTS),
        *(("lake", "queues", v) for v in HOSTILE_LISTS),
        *(("bulk_action_part", "ids", v) for v in ("5", "{}", '["a"]', "[null]")),
        *(("history", c, v) for c in ("waits", "runs") for v in HOSTILE_TALLIES),
        *((t, "seconds", v) for t in ("history", "rollup") for v in ("0", "-60")),
        *(("bulk_action", "rate", v) for v in ("0", "-1", "1e-300", "nan", "inf", "-inf")),
        *(("bulk_action", c, "-1") for c in ("count", "done", "passed", "step_size")),
        ("bulk_action", "step_size", "0"),
        ("bulk_action", "kind", "explode"),
        ("bulk_action", "state", "paused"),
    ],
)
def test_rows_that_would_stop_maintenance_or_the_admin_are_refused(orders, table, column, value):
    action = BulkAction.objects.create(
        queue=Queue.objects.get(), kind="delete", count=1, highest_id=1
    )
    BulkActionPart.objects.create(bulk_action=action, ids=[1])
    Process.objects.create(host="web-1", pid=1, version="1")
    Lake.objects.create(path="/lake")
    now = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
    History.objects.create(queue=Queue.objects.get(), bucket=now, seconds=60, waits={"1": 2})
    Rollup.objects.create(queue_name="orders", bucket=now, seconds=3600)

    with pytest.raises(IntegrityError) as raised, transaction.atomic():
        run_sql(f"UPDATE pgqueue_{table} SET {column} = %s", [value])

    cause: Any = raised.value.__cause__
    assert cause.diag.constraint_name == f"pgqueue_{table}_{column}"


@pytest.mark.parametrize("value", [5, "orders", {}, [5], None])
def test_a_form_says_what_a_list_of_queues_is(db, value):
    with pytest.raises(ValidationError, match=r"list of names|cannot be null"):
        Lake(path="/lake", queues=value).full_clean()


@pytest.mark.parametrize("argument", sorted(SETTINGS.keys() - {"dead_letter_queue"}))
def test_every_setting_has_a_check_or_a_type_that_refuses(db, argument):
    column: Any = SETTINGS[argument]
    if not (column.kind.within or column.kind.matching):
        assert column.get_internal_type() in ("BooleanField", "CharField")
    else:
        with connection.cursor() as cursor:
            names = connection.introspection.get_constraints(cursor, "pgqueue_queue")
        assert f"pgqueue_queue_{argument}" in names


def test_a_group_with_settings_is_read_after_a_refusal(db):
    Message.objects.create_queue("mails", group_rate="100/s")
    customer = queue("mails").group("customer 12")
    customer.rate("50/s", burst=2)
    queue("mails").send(1, group="customer 12")

    with pytest.raises(InvalidArgument):
        customer.rate("0/s")

    assert len(queue("mails").read(in_transaction=True)) == 1
