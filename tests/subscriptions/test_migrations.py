"""The migration operation that makes a subscription."""

from __future__ import annotations

import datetime as dt

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.state import ProjectState
from django.db.migrations.writer import OperationWriter

from django_pgqueue.errors import InvalidArgument, InvalidQueueName
from django_pgqueue.models import Message, Queue, queue
from django_pgqueue.operations import AlterQueue, CreateQueue, DropQueue, Subscribe, replay
from tests.conftest import run_sql

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def state():
    from django.apps import apps

    Queue.objects.forget_all()
    return ProjectState.from_apps(apps)


def forwards(operation, state):
    with connection.schema_editor(atomic=True) as editor:
        operation.database_forwards("shop", editor, state, state)
    Queue.objects.forget_all()


def backwards(operation, state):
    with connection.schema_editor(atomic=True) as editor:
        operation.database_backwards("shop", editor, state, state)
    Queue.objects.forget_all()


def bodies(name):
    return [message.body for message in queue(name).read(qty=10)]


def test_a_migration_makes_a_subscription_that_works(state):
    forwards(CreateQueue("orders"), state)
    queue("orders").send("before")

    forwards(Subscribe("audit", to="orders", start="earliest", max_deliveries=5), state)
    forwards(Subscribe("mails", to="orders"), state)
    queue("orders").send("after")

    assert Queue.objects.get(name="audit").max_deliveries == 5
    assert bodies("audit") == ["before", "after"]
    assert bodies("mails") == ["after"]


def test_a_migration_leaves_a_subscription_that_exists_as_it_is(state):
    queue("orders").create()
    queue("audit").subscribe(to="orders", start="earliest", max_deliveries=7)
    queue("orders").send(1)
    assert bodies("audit") == [1]

    forwards(Subscribe("audit", to="orders", start="earliest", max_deliveries=5), state)

    assert Queue.objects.get(name="audit").max_deliveries == 7
    assert bodies("audit") == []


def test_backwards_drops_the_subscription_and_leaves_the_source(state):
    operation = Subscribe("audit", to="orders", start="earliest")
    forwards(CreateQueue("orders"), state)
    forwards(operation, state)
    queue("orders").send(1)
    number = Queue.objects.get(name="audit").pk

    backwards(operation, state)
    backwards(operation, state)

    assert [each.name for each in Queue.objects.all()] == ["orders"]
    assert run_sql(f"SELECT count(*) FROM pgqueue_cursor WHERE queue_id = {number}") == [(0,)]
    assert bodies("orders") == [1]


def test_the_source_cannot_be_dropped_before_its_subscriptions(state):
    forwards(CreateQueue("orders"), state)
    forwards(Subscribe("mails", to="orders"), state)
    forwards(Subscribe("audit", to="orders"), state)

    for drop, operation in (
        (forwards, DropQueue("orders")),
        (backwards, CreateQueue("orders")),
    ):
        with pytest.raises(InvalidArgument, match="has the subscriptions audit, mails"):
            drop(operation, state)

    for name in ("mails", "audit", "orders"):
        forwards(DropQueue(name), state)
    assert not Queue.objects.exists()


@pytest.mark.parametrize(
    ("operation", "says"),
    [
        (Subscribe("audit", to="missing"), "there is no queue 'missing'"),
        (Subscribe("other", to="audit"), "'audit' is a subscription"),
        (Subscribe("orders", to="orders"), "cannot subscribe to itself"),
        (Subscribe("plain", to="orders"), "'plain' exists, and is no subscription"),
        (Subscribe("audit", to="plain"), "'audit' exists, and is a subscription to queue 'orders'"),
        (Subscribe("other", to="orders", dead_letter_queue="audit"), "is a subscription"),
        (Subscribe("other", to="orders", dead_letter_queue="orders"), "would form a cycle"),
        (AlterQueue("audit", group_limit=3), "a subscription has no group_limit"),
        (AlterQueue("orders", keep_for=60), "keep_for is a setting of subscriptions"),
    ],
)
def test_a_wrong_operation_says_what_is_wrong(state, operation, says):
    queue("orders").create()
    queue("plain").create()
    queue("audit").subscribe(to="orders")

    with pytest.raises(InvalidArgument, match=says):
        forwards(operation, state)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"start": "first"}, 'start must be "now", "earliest", an aware datetime'),
        ({"start": dt.datetime(2026, 1, 1)}, "an aware datetime"),
        ({"max_deliveries": 0}, "max_deliveries must be a whole number"),
        ({"keep_for": 0}, "keep_for must be at least a second"),
        ({"burst": 3}, "burst needs a rate"),
    ],
)
def test_a_wrong_argument_is_refused_when_the_migration_is_loaded(given, says):
    with pytest.raises(InvalidArgument) as refused:
        Subscribe("audit", to="orders", **given)

    assert says in str(refused.value)
    assert "Subscribe('audit')" in str(refused.value)


def test_a_bad_name_is_refused_when_the_migration_is_loaded():
    with pytest.raises(InvalidQueueName):
        Subscribe("au dit", to="orders")
    with pytest.raises(InvalidQueueName):
        Subscribe("audit", to="or ders")
    with pytest.raises(TypeError, match="group_limit"):
        Subscribe("audit", to="orders", group_limit=3)


@pytest.mark.parametrize(
    "start", ["now", "earliest", dt.datetime(2026, 11, 28, 12, tzinfo=dt.timezone.utc)]
)
def test_squashing_migrations_keeps_every_argument(start):
    operation = Subscribe("audit", to="orders", start=start, keep_for=dt.timedelta(days=2))

    text, imports = OperationWriter(operation, indentation=0).serialize()
    names = {}
    exec("\n".join(sorted(imports)), names)
    again = eval(text.rstrip(","), names)

    assert again.deconstruct() == operation.deconstruct()
    assert operation.describe() == "Subscribe queue audit to queue orders"
    assert operation.migration_name_fragment == "subscribe_audit"


def test_the_dependency_that_is_missing_is_named():
    loader = MigrationLoader(connection)
    before = loader.project_state(("django_pgqueue", "0005_bulk_actions"))
    Message.objects.create_queue("orders")

    with pytest.raises(InvalidArgument, match=r'add \("django_pgqueue", "0006_subscriptions"\)'):
        forwards(Subscribe("audit", to="orders"), before)

    assert ("django_pgqueue", "0006_subscriptions") in loader.disk_migrations


def test_operations_with_older_models_work_on_queues_of_this_version():
    loader = MigrationLoader(connection)
    before = loader.project_state(("django_pgqueue", "0001_initial"))
    for name in ("orders", "dead"):
        queue(name).create()
    number = queue("audit").subscribe(to="orders").pk

    forwards(AlterQueue("audit", max_deliveries=3), before)
    forwards(AlterQueue("orders", dead_letter_queue="dead"), before)
    with pytest.raises(InvalidArgument, match="has the subscriptions audit"):
        forwards(DropQueue("orders"), before)
    forwards(DropQueue("audit"), before)

    assert run_sql(f"SELECT count(*) FROM pgqueue_cursor WHERE queue_id = {number}") == [(0,)]
    assert run_sql(
        "SELECT count(*) FROM pg_trigger WHERE tgname = 'pgqueue_message_left' "
        f"AND tgrelid = 'pgqueue_message_q{Queue.objects.get(name='orders').pk}'::regclass"
    ) == [(0,)]


def test_a_flush_replays_subscriptions_on_the_tables_that_remain(state):
    operations = [
        (("shop", "0001"), CreateQueue("orders")),
        (("shop", "0001"), Subscribe("audit", to="orders", start="earliest")),
    ]
    replay("default", operations)
    queue("orders").send(1)
    assert bodies("audit") == [1]

    call_command("flush", interactive=False)
    replay("default", operations)
    queue("orders").send(2)

    assert bodies("audit") == [2]


def test_a_queue_takes_no_tables_that_remain_of_a_subscription(state):
    replay("default", [(("shop", "0001"), CreateQueue("orders"))])
    replay("default", [(("shop", "0001"), Subscribe("audit", to="orders"))])

    call_command("flush", interactive=False)
    for name in ("orders", "audit"):
        replay("default", [(("shop", "0001"), CreateQueue(name))])
    for number in range(2):
        queue("audit").send(number, group="g")

    assert bodies("audit") == [0]
