"""Uninstalling: the steps of docs/upgrades.md, in a project of its own."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest

from tests.acceptance.test_packages import ROOT
from tests.acceptance.test_upgrades import Release, conninfo, database
from tests.migrations.test_migrations import LEFT_BEHIND

__all__ = ["database"]

pytestmark = [pytest.mark.acceptance, pytest.mark.slow, pytest.mark.django_db(transaction=True)]

SETTINGS = """
import json, os
SECRET_KEY = "only for tests"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django_pgqueue", "shop"]
DATABASES = {"default": json.loads(os.environ["UPGRADED"])}
"""

MODELS = """
from django.db import models

class Order(models.Model):
    number = models.CharField(max_length=40)
    note = models.TextField(default="")
"""

FIRST = """
from django.db import migrations, models

class Migration(migrations.Migration):
    operations = [
        migrations.CreateModel(
            "Order",
            [
                ("id", models.BigAutoField(
                    auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                )),
                ("number", models.CharField(max_length=40)),
            ],
        )
    ]
"""

QUEUES = """
from django.db import migrations
from django_pgqueue.operations import CreateQueue

class Migration(migrations.Migration):
    dependencies = [("shop", "0001_initial"), ("django_pgqueue", "0001_initial")]
    operations = [CreateQueue("orders")]
"""

WITHOUT_QUEUES = """
from django.db import migrations

class Migration(migrations.Migration):
    dependencies = [("shop", "0001_initial")]
    operations = []
"""

LATER = """
from django.db import migrations, models

class Migration(migrations.Migration):
    dependencies = [("shop", "0002_queues")]
    operations = [migrations.AddField("Order", "note", models.TextField(default=""))]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "project"
    migrations = directory / "shop" / "migrations"
    migrations.mkdir(parents=True)
    (directory / "settings.py").write_text(SETTINGS)
    (directory / "shop" / "__init__.py").touch()
    (directory / "shop" / "models.py").write_text(MODELS)
    (migrations / "__init__.py").touch()
    (migrations / "0001_initial.py").write_text(FIRST)
    (migrations / "0002_queues.py").write_text(QUEUES)
    (migrations / "0003_note.py").write_text(LATER)
    return directory


def steps() -> list[list[str]]:
    """The commands of the page's section, without ``python manage.py``."""
    _, _, text = (ROOT / "docs" / "upgrades.md").read_text().partition("\n## Uninstall\n")
    return [
        line.split() for line in re.findall(r"^    python manage\.py (.*)$", text, re.MULTILINE)
    ]


def test_a_project_that_leaves_keeps_its_own_tables_and_nothing_of_ours(database, project):
    plan, remove, forget = steps()
    before = Release(ROOT, project, database)
    before.manage("migrate")
    send = "from django_pgqueue import queue; queue('orders').send(1)"
    order = "from shop.models import Order; Order.objects.create(number='A-7', note='kept')"
    before.manage("shell", "-v", "0", "-c", f"{send}; {order}")

    assert "shop.0003_note" in before.manage(*plan)
    (project / "shop" / "migrations" / "0002_queues.py").write_text(WITHOUT_QUEUES)
    assert "shop." not in before.manage(*plan)
    before.manage(*remove)
    (project / "settings.py").write_text(SETTINGS.replace('"django_pgqueue", ', ""))
    after = Release(project, project, database)
    after.manage(*forget, "--no-input")
    after.manage("check")
    after.manage("makemigrations", "--check", "--dry-run")

    assert "No migrations to apply" in after.manage("migrate")
    with psycopg.connect(conninfo(database)) as server:
        assert server.execute(LEFT_BEHIND).fetchall() == []
        names = "SELECT app FROM django_migrations UNION SELECT app_label FROM django_content_type"
        assert {name for (name,) in server.execute(names)} == {"auth", "contenttypes", "shop"}
        assert server.execute("SELECT number, note FROM shop_order").fetchall() == [("A-7", "kept")]
