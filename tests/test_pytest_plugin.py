"""The pytest plugin in a separate project: fixtures, pytest-xdist, and --no-migrations."""

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


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in {
        "mysettings.py": SETTINGS,
        "pytest.ini": "[pytest]\n",
        "shop/__init__.py": "",
        "shop/consumers.py": CONSUMERS,
        "shop/migrations/__init__.py": "",
        "shop/migrations/0001_queues.py": MIGRATION,
        "test_shop.py": TESTS,
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.mark.slow
def test_a_project_uses_the_fixtures_with_xdist_and_without_migrations(project):
    root = str(Path(__file__).resolve().parent.parent)
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "django_pgqueue.pytest_plugin"),
        *("--ds=mysettings", "-n", "2", "--create-db", "--no-migrations"),
    ]
    done = subprocess.run(
        command,
        cwd=project,
        env={**os.environ, "PYTHONPATH": f"{project}{os.pathsep}{root}"},
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "9 passed" in done.stdout
