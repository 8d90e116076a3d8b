"""Roles with the rights that the command grants: what each can and cannot do."""

from __future__ import annotations

import datetime as dt

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from django_pgqueue import consumer, queue
from django_pgqueue.acks import Reject
from django_pgqueue.engine.read.reading import fall_asleep
from django_pgqueue.models import (
    ArchivedMessage,
    LiveMessage,
    Message,
    Queue,
)
from django_pgqueue.operations import CreateQueue
from django_pgqueue.retries import Constant
from tests.conftest import run_sql
from tests.management.calling import call, call_json
from tests.management.roles import ROLE, acting, refused

pytestmark = pytest.mark.usefixtures("committed")


def send_in_every_way(name: str) -> None:
    orders = queue(name)
    orders.send({"order": 1})
    orders.send({"order": 2}, delay=60, priority=5, headers={"by": "web"})
    orders.send({"order": 3}, group="customer-7")
    orders.send({"order": 4}, unique="four")
    orders.send({"order": 4}, unique="four", until="started")
    for until in ("started", "done"):
        orders.send({"order": 5}, unique="five", until=until)
    for _each in range(2):  # the second finds the first expired
        orders.send({"order": 6}, unique="six", until="done", expires=1e-6)
    orders.send_batch([6])
    orders.send_batch([7, 8], group="customer-7", unique=["seven", "eight"])


def change_settings() -> None:
    orders = Queue.objects.get(name="orders")
    orders.visibility_timeout = 60
    orders.save()


# The schema


@pytest.mark.parametrize("grantee", ["PUBLIC", ROLE], ids=["PUBLIC", "the role"])
def test_a_role_with_rights_may_not_plant_functions(role, queues, grantee):
    """Others, a superuser too, would call them by our statements."""
    run_sql(f"GRANT CREATE ON SCHEMA public TO {grantee}")
    try:
        call("pgqueue_grants", "--role", role, "--for", "sender", "--apply")

        with acting(role):
            queue("orders").send(1)
            assert refused(
                lambda: run_sql(
                    "CREATE FUNCTION public.unnest(bigint[]) RETURNS SETOF bigint LANGUAGE sql "
                    "AS 'SELECT 1::bigint'"
                )
            )
    finally:
        run_sql(f"REVOKE CREATE ON SCHEMA public FROM {grantee}")


def test_a_schema_that_nobody_else_may_change_is_left_alone(role, queues):
    out = call("pgqueue_grants", "--role", role, "--for", "sender")

    assert "CREATE ON SCHEMA" not in out


# Senders


@pytest.mark.parametrize("name", ["orders", "fast", "clicks"])
def test_a_sender_sends_in_every_way(role, queues, name, settings):
    call("pgqueue_grants", "--role", role, "--for", "sender", "--queue", name, "--apply")

    with acting(role):
        send_in_every_way(name)
        settings.PGQUEUE = {"COPY_THRESHOLD": 1}
        queue(name).send_batch([9, 10])

    assert queue(name).metrics().length == 12


def test_a_sender_publishes_and_sends_by_plain_sql(role, queues):
    call("pgqueue_grants", "--role", role, "--for", "sender", "--apply")
    pk = Queue.objects.get(name="orders").pk

    with acting(role):
        Message.objects.publish("order.paid", 1)
        for table in ("pgqueue_message", f"pgqueue_message_q{pk}"):
            run_sql(f"INSERT INTO {table} (queue_id, body) VALUES (%s, '2')", [pk])

    assert queue("orders").metrics().length == 3


@pytest.mark.parametrize("kind", ["sender", "consumer"])
def test_a_role_that_may_consume_replaces_messages(role, queues, kind):
    first = queue("orders").send(1, unique="k", until="done")
    call("pgqueue_grants", "--role", role, "--for", kind, "--queue", "orders", "--apply")

    with acting(role):
        if kind == "sender":
            refused(lambda: queue("orders").send(2, unique="k", on_conflict="replace"))
        else:
            assert queue("orders").send(2, unique="k", on_conflict="replace") > first

    assert queue("orders").metrics().length == 1


def test_a_sender_can_do_nothing_else(role, queues):
    call("pgqueue_grants", "--role", role, "--for", "sender", "--queue", "orders", "--apply")
    queue("orders").send(1)
    pk = Queue.objects.get(name="orders").pk

    with acting(role):
        assert refused(lambda: queue("mails").send(1))
        assert refused(lambda: queue("orders").read())
        assert refused(lambda: queue("orders").peek())
        assert refused(lambda: queue("orders").purge())
        assert refused(lambda: run_sql(f"SELECT body FROM pgqueue_message_q{pk}"))
        assert refused(
            lambda: run_sql(
                f"INSERT INTO pgqueue_message_q{pk} (queue_id, enqueued_at) "
                f"VALUES ({pk}, '2000-01-01')"
            )
        )
        assert refused(lambda: Message(queue_id=pk, body=1).save())
        assert refused(lambda: list(ArchivedMessage.objects.all()))
        assert refused(change_settings)
        assert refused(lambda: Message.objects.drop_queue("orders"))
        assert refused(lambda: Message.objects.create_queue("more"))
        assert refused(lambda: run_sql("SELECT setval('pgqueue_message_id_seq', 1)"))


# Consumers


@pytest.mark.parametrize("name", ["orders", "fast", "clicks"])
def test_a_consumer_reads_and_settles(role, queues, name):
    send_in_every_way(name)
    queue(name).send_batch(list(range(40)))
    call("pgqueue_grants", "--role", role, "--for", "consumer", "--queue", name, "--apply")

    with acting(role):
        orders = queue(name)
        orders.archive(orders.read(qty=20))
        first, second, third, *others = orders.read(qty=20)
        first.nack(delay=0)
        second.reject("no good")
        third.extend(60)
        orders.delete(others[:2])
        orders.set_vt(others[2:], 0)
        orders.pop()
        orders.read_grouped(qty=5)
        orders.purge()

    assert queue(name).metrics().archived >= 20


def test_a_consumer_sends_dead_letters_and_no_other_messages_there(role, queues):
    queue("orders").send_batch([1, 2])
    call("pgqueue_grants", "--role", role, "--for", "consumer", "--queue", "orders", "--apply")

    with acting(role):
        [message] = queue("orders").read()
        message.reject("no good")
        assert refused(lambda: queue("dead").read())
        assert refused(lambda: queue("mails").send(1))

    assert queue("dead").metrics().ready == 1


def test_runconsumer_runs_as_a_consumer(role, queues, own_handlers):
    @consumer("orders")
    def charge(message: Message) -> None:
        if message.body == 2:
            raise Reject("no good")

    queue("orders").send_batch([1, 2, 3], group="customer-7")
    call("pgqueue_grants", "--role", role, "--for", "consumer", "--queue", "orders", "--apply")

    with acting(role):
        call_command("runconsumer", "orders", "--drain", "--no-progress")

        assert queue("orders").metrics().archived == 2
        assert call_json("pgqueue_health", "orders")["healthy"]

    assert queue("dead").metrics().ready == 1


def test_a_consumer_can_do_nothing_else(role, queues):
    call("pgqueue_grants", "--role", role, "--for", "consumer", "--queue", "orders", "--apply")

    with acting(role):
        assert refused(change_settings)
        assert refused(queue("orders").group("customer 12").pause)
        assert refused(lambda: Message.objects.bind("order.#", "mails"))
        assert refused(lambda: queue("mails").peek())
        assert refused(lambda: Message.objects.drop_queue("orders"))
        assert refused(lambda: ArchivedMessage.objects.all().delete())


# Operators and analysts


def test_an_operator_redrives_replays_purges_and_changes_settings(role, queues):
    queue("orders").send_batch([1, 2, 3])
    queue("orders").read()[0].reject("no good")
    queue("orders").archive(queue("orders").read())
    call("pgqueue_grants", "--role", role, "--for", "operator", "--apply")

    with acting(role):
        assert queue("dead").redrive() == 1
        assert queue("orders").replay() == 1
        assert len(queue("orders").peek(qty=10)) == 3
        assert queue("orders").purge() == 3
        change_settings()
        queue("mails").group("customer 12").pause()
        queue("mails").group("customer 12").resume()
        Message.objects.bind("mail.#", "mails")
        Message.objects.unbind("mail.#", "mails")
        assert queue("orders").metrics().archived == 1
        assert call_json("pgqueue_queues")
        assert Message.objects.all().delete()[0] == 1
        assert refused(lambda: Message.objects.create_queue("more"))
        assert refused(lambda: Message.objects.drop_queue("mails"))

    assert Queue.objects.get(name="orders").visibility_timeout == 60


def test_an_analyst_sees_everything_and_changes_nothing(role, queues):
    queue("orders").send_batch([1, 2])
    queue("orders").archive(queue("orders").read())
    call("pgqueue_grants", "--role", role, "--for", "analyst", "--apply")

    with acting(role):
        assert [message.body for message in Message.objects.order_by("pk")] == [1, 2]
        assert ArchivedMessage.objects.count() == LiveMessage.objects.count() == 1
        assert queue("orders").metrics().ready == 1
        assert len(queue("orders").peek()) == 1
        assert call_json("pgqueue_queues")
        assert refused(lambda: queue("orders").send(1))
        assert refused(lambda: queue("orders").read())
        assert refused(lambda: queue("orders").purge())
        assert refused(change_settings)


def test_an_analyst_of_one_queue_sees_no_other_bodies(role, queues):
    queue("orders").send(1)
    call("pgqueue_grants", "--role", role, "--for", "analyst", "--queue", "orders", "--apply")

    with acting(role):
        assert [message.body for message in queue("orders").peek()] == [1]
        assert refused(lambda: queue("mails").peek())
        assert refused(lambda: list(Message.objects.all()))


# New queues


def make_by_migration() -> None:
    from django.apps import apps
    from django.db.migrations.state import ProjectState

    state = ProjectState.from_apps(apps)
    with connection.schema_editor(atomic=False) as editor:
        CreateQueue("later").database_forwards("shop", editor, state, state)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Message.objects.create_queue("later"),
        lambda: Message.objects.create_queue("later", partition_interval=3600),
        make_by_migration,
    ],
    ids=["create_queue", "partition_interval", "migration"],
)
def test_a_queue_made_later_inherits_rights_on_all_queues(role, queues, make):
    call("pgqueue_grants", "--role", role, "--for", "consumer", "--apply")

    make()

    with acting(role):
        queue("later").send(1)
        queue("later").send(2, group="customer-7")
        assert len(queue("later").archive(queue("later").read(qty=2))) == 2


def test_a_consumer_of_all_queues_keeps_attempts_of_a_queue_made_later(role, queues, own_handlers):
    @consumer("later", retry=Constant(seconds=0, max_attempts=2))
    def charge(message: Message) -> None:
        raise ValueError("no money")

    call("pgqueue_grants", "--role", role, "--for", "consumer", "--apply")
    Message.objects.create_queue("later")
    pk = queue("later").send(1)

    with acting(role):
        call_command("runconsumer", "later", "--drain", "--no-progress")
        assert [each.message for each in queue("later").attempts(pk)] == ["no money"] * 2


@pytest.mark.parametrize(
    ("name", "interval"), [("orders", dt.timedelta(days=1)), ("clicks", dt.timedelta(hours=1))]
)
def test_a_queue_that_is_converted_keeps_its_rights(role, queues, name, interval):
    call("pgqueue_grants", "--role", role, "--for", "sender", "--queue", name, "--apply")
    queue(name).send(1)

    queue(name).repartition(interval)

    with acting(role):
        send_in_every_way(name)
        assert refused(lambda: queue(name).peek())


def test_a_queue_made_later_inherits_nothing_from_rights_on_others(role, queues):
    call("pgqueue_grants", "--role", role, "--for", "sender", "--queue", "orders", "--apply")

    Message.objects.create_queue("later")

    with acting(role):
        assert refused(lambda: queue("later").send(1))


def test_a_role_that_analyses_cannot_wake(role, queues):
    call("pgqueue_grants", "--role", role, "--for", "analyst", "--apply")
    Message.objects.create_queue("later")
    wake = f"pgqueue_wake_q{Queue.objects.get(name='later').pk}"

    with acting(role):
        run_sql(f"SELECT last_value FROM {wake}")
        assert refused(lambda: run_sql(f"SELECT setval('{wake}', 1)"))


def test_a_role_that_consumes_falls_asleep(role, queues):
    call("pgqueue_grants", "--role", role, "--for", "consumer", "--queue", "orders", "--apply")
    wake = f"pgqueue_wake_q{Queue.objects.get(name='orders').pk}"
    run_sql(f"SELECT setval('{wake}', 8)")

    with acting(role):
        fall_asleep(Queue.objects.resolve("orders").opened, heard=(), doubt=None)

    assert run_sql(f"SELECT last_value FROM {wake}") == [(7,)]


# Row-level security


def test_policies_on_the_parent_do_not_reach_our_statements(role, queues):
    """Row-level security does not apply to our statements, so docs/grants.md advises against it."""
    call("pgqueue_grants", "--role", role, "--for", "analyst", "--apply")
    queue("orders").send(1)
    run_sql("ALTER TABLE pgqueue_message ENABLE ROW LEVEL SECURITY")
    try:
        with acting(role):
            assert not Message.objects.exists()
            assert len(queue("orders").peek()) == 1
    finally:
        run_sql("ALTER TABLE pgqueue_message DISABLE ROW LEVEL SECURITY")


# The command


def test_the_command_prints_sql_that_can_be_run_by_hand(role, queues):
    for statement in call("pgqueue_grants", "--role", role, "--for", "sender").out.splitlines():
        assert statement.startswith("GRANT ")
        assert statement.endswith(f" TO {role};")
        run_sql(statement)

    with acting(role):
        queue("orders").send(1)


def test_revoke_takes_the_same_rights_away(role, queues):
    call("pgqueue_grants", "--role", role, "--for", "operator", "--apply")

    out = call("pgqueue_grants", "--role", role, "--for", "operator", "--revoke", "--apply").out

    assert "REVOKE statements for role" in out
    with acting(role):
        assert refused(lambda: queue("orders").send(1))
    count = "SELECT count(*) FROM pg_class, aclexplode(relacl) WHERE grantee = %s::regrole"
    assert run_sql(count, [role]) == [(0,)]


def test_json_has_the_statements(role, queues):
    said = call_json("pgqueue_grants", "--role", role, "--for", "analyst", "--queue", "orders")

    assert (said["role"], said["for"], said["applied"]) == (role, "analyst", False)
    assert any("pgqueue_message_q" in statement for statement in said["statements"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--role", "nobody_here", "--for", "sender"], "CREATE ROLE nobody_here"),
        (["--role", ROLE, "--for", "sender", "--queue", "order"], "no queue 'order'"),
        (["--role", ROLE, "--for", "king"], "invalid choice: 'king'"),
    ],
)
def test_an_unknown_role_queue_or_kind_is_named(role, queues, arguments, words):
    with pytest.raises(CommandError, match=words):
        call("pgqueue_grants", *arguments)
