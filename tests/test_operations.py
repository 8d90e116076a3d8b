"""Migration operations that create queues in a project."""

from __future__ import annotations

import datetime as dt

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.migrations.exceptions import IrreversibleError
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.db.migrations.state import ProjectState
from django.db.migrations.writer import OperationWriter

from django_pgqueue import operations
from django_pgqueue.errors import InvalidArgument, InvalidQueueName
from django_pgqueue.maintenance import bounds
from django_pgqueue.models import BoundQueue, LiveMessage, Message, Queue, queue
from django_pgqueue.operations import (
    AlterQueue,
    BindTopic,
    CreateQueue,
    DropQueue,
    UnbindTopic,
    operations_in,
    restore_queues,
)
from tests.conftest import run_sql

pytestmark = pytest.mark.django_db


@pytest.fixture
def state():
    from django.apps import apps

    Queue.objects.forget_all()
    return ProjectState.from_apps(apps)


def forwards(operation, state):
    with connection.schema_editor(atomic=False) as editor:
        operation.database_forwards("shop", editor, state, state)


def backwards(operation, state):
    with connection.schema_editor(atomic=False) as editor:
        operation.database_backwards("shop", editor, state, state)


def test_a_migration_makes_a_queue_that_works(state):
    forwards(CreateQueue("orders", visibility_timeout=77, max_deliveries=3), state)

    Message.objects.send("orders", {"order": 7})

    assert Queue.objects.get(name="orders").visibility_timeout == 77
    assert [message.body for message in Message.objects.read("orders")] == [{"order": 7}]


def test_a_migration_leaves_a_queue_that_exists_as_it_is(state):
    Message.objects.create_queue("Orders", visibility_timeout=11)

    forwards(CreateQueue("orders", visibility_timeout=77), state)

    assert [queue.visibility_timeout for queue in Message.objects.list_queues()] == [11]


def test_a_migration_names_the_dead_letter_queue(state):
    forwards(CreateQueue("dead"), state)
    forwards(CreateQueue("orders", dead_letter_queue="dead"), state)

    assert Queue.objects.get(name="orders").dead_letter_queue.name == "dead"


#: The tables, indexes, sequences and functions of single queues.
QUEUES_OWN = """
    SELECT relname FROM pg_class WHERE relname ~ 'pgqueue_.*_q[0-9]+'
    UNION ALL SELECT proname FROM pg_proc WHERE proname ~ 'pgqueue_.*_q[0-9]+'
    ORDER BY 1
"""


def test_backwards_drops_all_of_the_queue(state):
    before = run_sql(QUEUES_OWN)  # a flush by another test leaves the tables of its queues
    operation = CreateQueue("orders")
    forwards(operation, state)
    assert len(run_sql(QUEUES_OWN)) > len(before)
    for number in range(3):
        Message.objects.send("orders", number, group="g", unique=str(number))
    until = dt.datetime(2200, 1, 1, tzinfo=dt.timezone.utc)
    with connection.cursor() as cursor:
        bounds.add_bound(cursor, Queue.objects.get().pk, "pgqueue_message", until)

    backwards(operation, state)

    assert not Queue.objects.exists()
    assert LiveMessage.objects.count() == 0
    assert run_sql(QUEUES_OWN) == before
    for table in ("group", "claim"):
        assert run_sql(f"SELECT count(*) FROM pgqueue_{table}") == [(0,)]
    backwards(operation, state)


def test_a_bad_name_is_refused_when_the_migration_is_loaded():
    with pytest.raises(InvalidQueueName):
        CreateQueue("or ders")


def test_the_operation_names_its_arguments_for_a_squashed_migration():
    operation = CreateQueue("orders", notify=False)

    assert operation.deconstruct() == ("CreateQueue", ["orders"], {"notify": False})
    assert operation.describe() == "Create queue orders"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"visibility_timeout": 0}, "visibility_timeout must be whole seconds, at least 1, not 0"),
        ({"max_deliveries": True}, "max_deliveries must be a whole number"),
        ({"retention": "30d"}, "retention must be seconds or a timedelta, not '30d'"),
        ({"retention": 0.5}, "retention must be at least a second"),
        ({"unique_window": -1}, "unique_window must be at least a second"),
        ({"age_limit": 0}, "age_limit must be at least a second"),
        ({"notify": "yes"}, "notify must be True or False, not 'yes'"),
        ({"dead_letter_queue": "de ad"}, "dead_letter_queue must be the name of a queue"),
        ({"limit": 0}, "limit must be a whole number from 1 to 10000, not 0"),
        ({"rate": "10"}, "rate must be a number of messages in a second, minute, hour or day"),
    ],
)
@pytest.mark.parametrize("operation", [CreateQueue, DropQueue, AlterQueue])
def test_a_wrong_setting_is_refused_when_the_migration_is_loaded(operation, settings, says):
    with pytest.raises(InvalidArgument) as refused:
        operation("orders", **settings)

    assert says in str(refused.value)
    assert f"{operation.__name__}('orders')" in str(refused.value)


def test_storage_cannot_be_altered():
    with pytest.raises(TypeError, match=r"^AlterQueue\(\) got .* 'partition_interval'"):
        AlterQueue("orders", partition_interval=60)


def test_durations_may_be_seconds(state):
    forwards(CreateQueue("orders", partition_interval=3600, retention=86_400), state)

    queue = Queue.objects.get(name="orders")
    assert queue.partition_interval == dt.timedelta(hours=1)
    assert queue.retention == dt.timedelta(days=1)
    assert Message.objects.send("orders", 1)


def test_an_unknown_dead_letter_queue_is_named(state):
    forwards(CreateQueue("orders.dead"), state)

    with pytest.raises(InvalidArgument) as refused:
        forwards(CreateQueue("orders", dead_letter_queue="orders.daed"), state)

    assert "no queue 'orders.daed'" in str(refused.value)
    assert "its queues: orders.dead" in str(refused.value)


def test_alter_changes_what_it_names_and_backwards_restores_it(state):
    forwards(CreateQueue("orders", visibility_timeout=60, max_deliveries=3), state)
    operation = AlterQueue(
        "orders",
        max_deliveries=9,
        retention=86_400,
        before={"max_deliveries": 3, "retention": None},
    )

    forwards(operation, state)

    queue = Queue.objects.get(name="orders")
    assert (queue.visibility_timeout, queue.max_deliveries) == (60, 9)
    assert queue.retention == dt.timedelta(days=1)

    backwards(operation, state)

    queue = Queue.objects.get(name="orders")
    assert (queue.visibility_timeout, queue.max_deliveries, queue.retention) == (60, 3, None)


def test_limits_are_checked_with_those_that_the_queue_has(state):
    with pytest.raises(InvalidArgument, match=r"CreateQueue\('orders'\): burst needs a rate"):
        CreateQueue("orders", burst=5)
    forwards(CreateQueue("orders", rate="100/s"), state)

    forwards(AlterQueue("orders", burst=5), state)
    with pytest.raises(InvalidArgument, match="Change rate of queue orders: burst needs a rate"):
        forwards(AlterQueue("orders", rate=None), state)

    queue = Queue.objects.get(name="orders")
    assert (queue.rate, queue.burst) == ("100/s", 5)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"burst": 5, "rate": None}, r"AlterQueue\('orders'\): burst needs a rate"),
        ({"group_burst": 5, "group_limit": 5}, "cannot both be set"),
    ],
)
def test_limits_that_contradict_each_other_are_refused_when_the_migration_is_loaded(
    settings, words
):
    with pytest.raises(InvalidArgument, match=words):
        AlterQueue("orders", **settings)
    after = dict.fromkeys(settings)
    with pytest.raises(InvalidArgument, match="before"):
        AlterQueue("orders", before=settings, **after)


def test_alter_without_before_is_not_reversible(state):
    operation = AlterQueue("orders", paused=True)

    assert not operation.reversible
    with pytest.raises(IrreversibleError, match="before"):
        backwards(operation, state)


def test_alter_wants_the_same_settings_before():
    with pytest.raises(InvalidArgument, match="same settings"):
        AlterQueue("orders", paused=True, before={"notify": True})
    with pytest.raises(InvalidArgument, match="changes nothing"):
        AlterQueue("orders")


def test_alter_names_the_queue_that_is_missing(state):
    with pytest.raises(InvalidArgument, match="there is no queue 'orders'"):
        forwards(AlterQueue("orders", paused=True), state)


def test_dead_letters_must_not_go_round(state):
    forwards(CreateQueue("a"), state)
    forwards(CreateQueue("b", dead_letter_queue="a"), state)

    with pytest.raises(InvalidArgument, match="a -> b -> a"):
        forwards(AlterQueue("a", dead_letter_queue="b"), state)


def test_drop_drops_and_backwards_makes_an_empty_queue(state):
    operation = DropQueue("orders", visibility_timeout=60)
    forwards(CreateQueue("orders", visibility_timeout=60), state)
    Message.objects.send("orders", 1)

    forwards(operation, state)

    assert not Queue.objects.exists()
    assert LiveMessage.objects.count() == 0
    forwards(operation, state)

    backwards(operation, state)

    assert Queue.objects.get().visibility_timeout == 60
    assert BoundQueue("orders").peek() == []


def test_drop_names_the_queues_that_send_their_dead_letters_there(state):
    forwards(CreateQueue("dead"), state)
    forwards(CreateQueue("orders", dead_letter_queue="dead"), state)

    with pytest.raises(InvalidArgument, match="dead-letter queue of orders"):
        forwards(DropQueue("dead"), state)


@pytest.mark.parametrize("make", [forwards, backwards])
def test_topics_are_bound_and_unbound(state, make):
    bind, take_back = {
        forwards: (BindTopic("order.#", "orders"), UnbindTopic("order.#", "orders")),
        backwards: (UnbindTopic("order.#", "orders"), BindTopic("order.#", "orders")),
    }[make]
    forwards(CreateQueue("orders"), state)

    make(bind, state)
    make(bind, state)

    assert Message.objects.test_routing("order.paid") == {"orders": ["order.#"]}

    make(take_back, state)
    make(take_back, state)

    assert Message.objects.test_routing("order.paid") == {}


def test_a_bad_pattern_or_queue_is_refused(state):
    with pytest.raises(InvalidArgument, match="topic pattern"):
        BindTopic("order..#", "orders")
    with pytest.raises(InvalidArgument, match="there is no queue 'orders'"):
        forwards(BindTopic("order.#", "orders"), state)


@pytest.mark.parametrize(
    ("operation", "known", "missing"),
    [
        (CreateQueue("a"), None, "0001_initial"),
        (BindTopic("a.#", "a"), "0001_initial", "0002_topics_processes_maintenance"),
    ],
)
def test_the_dependency_that_is_missing_is_named(operation, known, missing):
    loader = MigrationLoader(connection)
    before = loader.project_state(("django_pgqueue", known)) if known else ProjectState()
    Message.objects.create_queue("a")

    with pytest.raises(InvalidArgument, match=rf'add \("django_pgqueue", "{missing}"\) to its'):
        forwards(operation, before)
    assert ("django_pgqueue", missing) in loader.disk_migrations


@pytest.mark.parametrize(
    "operation",
    [
        CreateQueue("orders", visibility_timeout=60, retention=dt.timedelta(days=1)),
        AlterQueue("orders", paused=True, before={"paused": False}),
        DropQueue("orders", notify=False),
        BindTopic("order.#", "orders"),
        UnbindTopic("order.#", "orders"),
    ],
    ids=lambda operation: type(operation).__name__,
)
def test_squashing_migrations_keeps_every_argument(operation):
    text, imports = OperationWriter(operation, indentation=0).serialize()
    names = {}
    exec("\n".join(sorted(imports)), names)

    again = eval(text.rstrip(","), names)

    assert again.deconstruct() == operation.deconstruct()
    assert again.migration_name_fragment == operation.migration_name_fragment


# After a flush

#: The migration that makes the queue github.
INBOX = ("inbox", "0002_github_queue")


@pytest.fixture
def inbox(settings):
    """The example's app, with its migrations."""
    settings.MIGRATION_MODULES = {}
    graph = MigrationLoader(None).graph
    assert INBOX in {key for key, _ in operations_in(graph)}
    MigrationRecorder(connection).record_applied(*INBOX)


def test_after_a_flush_the_queues_of_applied_migrations_are_made(inbox):
    restore_queues("default")

    assert queue("github").send(1)


def test_queues_of_migrations_that_are_not_applied_are_not_made(inbox):
    MigrationRecorder(connection).record_unapplied(*INBOX)

    restore_queues("default")

    assert not Queue.objects.exists()


def test_a_migrate_restores_no_queue(inbox):
    restore_queues("default", plan=[])

    assert not Queue.objects.exists()


def test_a_queue_that_was_dropped_beside_others_stays_away(state, monkeypatch):
    made = [(INBOX, CreateQueue("mails")), (INBOX, CreateQueue("orders"))]
    monkeypatch.setattr(operations, "_applied_operations", lambda *given: made)
    Message.objects.create_queue("Orders")

    restore_queues("default")

    assert [each.name for each in Message.objects.list_queues()] == ["Orders"]


@pytest.mark.django_db(databases=["default", "other"])
def test_queues_are_made_only_where_the_routers_allow_them(inbox, settings):
    settings.PGQUEUE = {"DATABASE": "other"}
    settings.DATABASE_ROUTERS = ["django_pgqueue.routers.QueueRouter"]

    restore_queues("default")

    assert not Queue.objects.using("default").exists()


@pytest.mark.django_db(transaction=True)
def test_a_queue_after_a_flush_uses_the_tables_of_one_before(committed):
    def partitions() -> list[tuple[object, ...]]:
        return run_sql(QUEUES_OWN)

    def flush() -> None:
        call_command("flush", interactive=False, verbosity=0)

    flush()
    orders, fast = queue("orders").create(), queue("fast").create(unlogged=True)
    queue("orders").send_batch([1, 2], group="g")
    queue("orders").pop()
    queue("fast").send(1)
    before = partitions()
    flush()
    tables = run_sql("SELECT oid FROM pg_class WHERE relname = %s", [orders.tables["message"]])

    made = queue("orders").create()

    assert made.pk == orders.pk
    assert queue("orders").peek(qty=5) == []
    assert queue("orders").send(3)
    assert [message.body for message in queue("orders").read(qty=5)] == [3]
    assert run_sql("SELECT oid FROM pg_class WHERE relname = %s", [made.tables["message"]]) == (
        tables
    )
    assert queue("logged").create().pk == fast.pk
    assert partitions() == before
    assert run_sql(
        "SELECT relpersistence FROM pg_class WHERE relname = %s", [fast.tables["message"]]
    ) == [("p",)]
