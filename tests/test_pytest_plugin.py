"""The pytest plugin in a separate project: with pytest-xdist, --no-migrations and --reuse-db."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SETTINGS = """
from tests.settings import *

INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "django_pgqueue", "shop"]
DATABASES["default"]["TEST"] = {"NAME": "test_queue_plugin"}
DATABASES["other"]["TEST"] = {"NAME": "test_queue_plugin_other"}
MIGRATION_MODULES = {}
TASKS = {}
"""

MIGRATION = """
from django.db import migrations
from django_pgqueue.operations import CreateQueue

class Migration(migrations.Migration):
    dependencies = [("django_pgqueue", "0001_initial")]
    operations = [CreateQueue("orders")]
"""

CONSUMERS = """
from django_pgqueue import consumer, queue

handled = []

@consumer("orders")
def charge(message):
    handled.append(message.body)
    if message.body == "bad":
        raise ValueError("no money")
    queue("mails").send({"charged": message.body})
"""

TESTS = """
import pytest
from django.test import TestCase, TransactionTestCase

from django_pgqueue import queue
from django_pgqueue.models import Message
from django_pgqueue.testing import drain as drain_queue, make_queues


def done(message):
    pass


@pytest.mark.parametrize("number", range(4))
def test_the_queue_of_a_migration_is_there(db, number, drain, make_queue, assert_enqueued):
    make_queue("mails")
    queue("orders").send(number)
    assert [m.body for m in drain("orders")] == [number]
    assert_enqueued("mails", body={"charged": number}, count=1)


def test_time_passes(make_queue, travel, drain, captured_messages, assert_not_enqueued):
    reminders = make_queue("reminders")
    with captured_messages("reminders") as sent:
        reminders.send(1, delay=3600)
    assert len(sent) == 1
    assert drain("reminders", done) == []
    travel(3600)
    assert len(drain("reminders", done)) == 1
    assert_not_enqueued("reminders")


def test_eagerly(eager, make_queue, assert_enqueued):
    make_queue("mails")
    queue("orders").send(7)
    assert_enqueued("mails", body={"charged": 7})
    with pytest.raises(ValueError, match="no money"):
        queue("orders").send("bad")


@pytest.mark.django_db(transaction=True)
def test_with_commits(make_queue, drain):
    make_queue("dead")
    cards = make_queue("cards", dead_letter_queue="dead")
    cards.send(1)
    assert len(drain("cards", done)) == 1


class Rolled(TestCase):
    def test_drain(self):
        Message.objects.create_queue("letters")
        queue("letters").send(1)
        assert len(drain_queue("letters", done)) == 1


class Committed(TransactionTestCase):
    def setUp(self):
        make_queues()

    def test_drain(self):
        queue("orders").send("bad")
        assert len(drain_queue("orders", policies=True)) == 10
"""


#: The files of a project whose TransactionTestCases run first, against pytest-django's order.
KEPT = {
    "mysettings.py": SETTINGS
    + """
TASKS = {"default": {"BACKEND": "django_pgqueue.tasks.PgQueueBackend"}}
""",
    "shop/migrations/0001_queues.py": """
from django.db import migrations
from django_pgqueue.operations import AlterQueue, BindTopic, CreateQueue, DropQueue

class Migration(migrations.Migration):
    dependencies = [("django_pgqueue", "0002_topics_processes_maintenance")]
    operations = [
        CreateQueue("old"),
        CreateQueue("orders.dead"),
        CreateQueue("orders", dead_letter_queue="orders.dead", max_deliveries=3),
        AlterQueue("orders", max_deliveries=7),
        BindTopic("order.#", "orders"),
        DropQueue("old"),
    ]
""",
    "conftest.py": """
import pytest
from django.test import TestCase

@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: issubclass(item.cls, TestCase))
""",
}
CHECKED = """
from django.db import connection
from django.test import TestCase, TransactionTestCase

from django_pgqueue import queue
from django_pgqueue.models import Message, Queue
from django_pgqueue.testing import make_queues


class Checked:
    def test_the_queues_of_migrations_and_tasks_are_there(self):
        names = [each.name for each in Message.objects.list_queues()]
        assert names == ["default", "orders", "orders.dead"]
        orders = Queue.objects.get(name="orders")
        assert (orders.max_deliveries, orders.dead_letter_queue.name) == (7, "orders.dead")
        assert list(Message.objects.publish("order.paid", 1)) == ["orders"]
        assert [message.body for message in queue("orders").read(qty=9)] == [1]
        queue("mails").create()

    test_they_are_there_again = test_the_queues_of_migrations_and_tasks_are_there


class Rolled(Checked, TestCase):
    pass
"""
COMMITTED = """

class Committed(Checked, TransactionTestCase):
    def test_tables_of_queues_do_not_pile_up(self):
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_class WHERE relname ~ '^pgqueue_message_q'"
                           " AND relkind = 'r'")
            assert cursor.fetchone()[0] <= 5, "three queues, mails, and the dropped one"
"""
#: Django sends no post_migrate after these tests.
SERIALIZED = """

class Serialized(Checked, TransactionTestCase):
    serialized_rollback = True

    def setUp(self):
        make_queues()
"""
#: An ordinary TransactionTestCase after those.
FOLLOWED = """

class Shipping(Checked, TransactionTestCase):
    def setUp(self):
        make_queues()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write(
        tmp_path,
        {
            "mysettings.py": SETTINGS,
            "shop/consumers.py": CONSUMERS,
            "shop/migrations/0001_queues.py": MIGRATION,
            "test_shop.py": TESTS,
        },
    )


def write(folder: Path, files: dict[str, str]) -> Path:
    """Write a project."""
    packages = {"shop/__init__.py": "", "shop/migrations/__init__.py": ""}
    for name, text in {"pytest.ini": "[pytest]\n", **packages, **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def run(project: Path, *options: str) -> str:
    """Run the project's tests. Returns what pytest says."""
    root = str(Path(__file__).resolve().parent.parent)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "django_pgqueue.pytest_plugin"),
            *("--ds=mysettings", "-n", "2", *options),
        ],
        cwd=project,
        env={**os.environ, "PYTHONPATH": f"{project}{os.pathsep}{root}"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_project_uses_the_fixtures_with_xdist_and_without_migrations(project):
    assert "9 passed" in run(project, "--create-db", "--no-migrations")


@pytest.mark.slow
def test_databases_need_no_name_for_tests_and_those_that_no_test_uses_are_left_alone(project):
    settings = (
        SETTINGS
        + """
DATABASES["default"] |= {"NAME": "queue_plugin_unnamed", "TEST": {}}
DATABASES["other"] = {"ENGINE": "django.db.backends.postgresql", "NAME": "real", "HOST": "/nowhere"}
"""
    )
    write(project, {"mysettings.py": settings})

    assert "9 passed" in run(project, "--create-db", "--no-migrations", "-n", "0")


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--no-migrations"]], ids=str)
def test_a_kept_database_has_the_queues_of_migrations_in_every_run(tmp_path, options):
    """Each of the two processes runs all tests in a database of its own."""
    write(tmp_path, {**KEPT, "test_shop.py": CHECKED + COMMITTED})
    options = ["--dist=each", "--reuse-db", *options]

    assert "10 passed" in run(tmp_path, *options, "--create-db")
    assert "10 passed" in run(tmp_path, *options)


@pytest.mark.slow
def test_a_kept_database_has_the_queues_after_tests_with_serialized_rollback(tmp_path):
    write(tmp_path, {**KEPT, "test_shop.py": CHECKED + SERIALIZED})
    (tmp_path / "conftest.py").unlink()  # so that these tests run last

    assert "4 passed" in run(tmp_path, "--reuse-db", "--create-db", "-n", "0")
    assert "4 passed" in run(tmp_path, "--reuse-db", "-n", "0")


@pytest.mark.slow
def test_an_ordinary_test_after_those_with_serialized_rollback_makes_the_queues_itself(tmp_path):
    write(tmp_path, {**KEPT, "test_shop.py": CHECKED + SERIALIZED + FOLLOWED})

    assert "6 passed" in run(tmp_path, "--create-db", "-n", "0")
