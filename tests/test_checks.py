"""Each system check, by its id: no message without a problem, and its message with one."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from django.core import checks, mail
from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError, connection, connections
from django.db.migrations.recorder import MigrationRecorder

import tests.app
from django_pgqueue import consumer
from django_pgqueue.conf import settings as ours
from django_pgqueue.embedded import base
from django_pgqueue.engine.settings import DEFAULTS
from django_pgqueue.models import Message, Queue
from django_pgqueue.retries import Constant, Exponential
from django_pgqueue.worker import listener
from tests.acceptance.test_transactions import pgbouncer
from tests.conftest import run_sql

__all__ = ["pgbouncer"]

ROUTER = "django_pgqueue.routers.QueueRouter"


class ElsewhereRouter:
    """A router that keeps our models in the default database."""

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "default"


def found(*, databases: list[str] | None = None) -> list[str]:
    """The ids of our checks' messages."""
    ours = [
        check
        for check in checks.registry.registry.get_checks()
        if check.__module__ == "django_pgqueue.checks"
    ]
    return [
        message.id or ""
        for check in ours
        for message in check(app_configs=None, databases=databases or [])
    ]


def said(check_id: str, *, databases: list[str] | None = None) -> checks.CheckMessage:
    [message] = [
        message
        for message in checks.run_checks(databases=databases or [])
        if message.id == f"django_pgqueue.{check_id}"
    ]
    return message


@pytest.fixture
def consumers_module(
    own_handlers: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[str], Path]:
    """Write an installed app's consumers.py."""

    def write(text: str) -> Path:
        path = tmp_path / "consumers.py"
        path.write_text(f"from django_pgqueue import consumer\n{text}")
        monkeypatch.setattr("tests.app.__path__", [*tests.app.__path__, str(tmp_path)])
        monkeypatch.delitem(sys.modules, "tests.app.consumers", raising=False)
        importlib.invalidate_caches()
        return path

    return write


@pytest.mark.django_db(databases=["default", "other"])
def test_a_sound_configuration_has_no_message():
    Message.objects.create_queue("github")

    assert found(databases=["default", "other"]) == []


@pytest.mark.parametrize(
    ("key", "hint"), [("COPY_TRESHOLD", "Did you mean 'COPY_THRESHOLD'?"), ("zzz", "DATABASE")]
)
def test_e001_names_the_key_that_was_meant_or_all_keys(settings, key, hint):
    settings.PGQUEUE = {"CACHE_SECONDS": 1, key: 5}

    message = said("E001")

    assert f"'{key}'" in message.msg
    assert hint in message.hint


def test_e002_asks_for_postgresql(monkeypatch):
    monkeypatch.setattr(connection, "vendor", "sqlite")
    monkeypatch.setattr(connection, "display_name", "SQLite")

    message = said("E002")

    assert "'default' is SQLite" in message.msg
    hint = "DATABASES['default']['ENGINE'] to 'django.db.backends.postgresql'"
    assert hint in (message.hint or "")


def test_e002_looks_at_the_database_of_the_queues_only(settings, monkeypatch):
    settings.PGQUEUE = {"DATABASE": "other"}
    settings.DATABASE_ROUTERS = [ROUTER]
    monkeypatch.setattr(connection, "vendor", "sqlite")

    assert found() == []


@pytest.mark.django_db
def test_e003_refuses_a_server_that_is_too_old(monkeypatch):
    monkeypatch.setitem(vars(connections["default"]), "pg_version", 140_012)

    assert "is PostgreSQL 14" in said("E003", databases=["default"]).msg
    assert found(databases=["other"]) == []
    assert found() == []


def test_a_database_that_is_down_is_left_to_who_connects(monkeypatch):
    def refuse(*args: object) -> None:
        raise OperationalError("connection refused")

    wrapper = connections["default"]
    monkeypatch.setattr(type(wrapper), "ensure_connection", refuse)
    monkeypatch.setattr(wrapper, "connection", None)
    vars(wrapper).pop("pg_version", None)

    assert found(databases=["default"]) == []


def test_e004_names_the_alias_that_is_missing(settings):
    settings.PGQUEUE = {"DATABASE": "queue"}

    message = said("E004")

    assert "'queue'" in message.msg
    assert "'default', 'other'" in (message.hint or "")
    assert found(databases=["default", "other"]) == ["django_pgqueue.E004"]


@pytest.mark.django_db
def test_e005_notices_tables_that_no_migration_made():
    run_sql("CREATE TEMPORARY TABLE pgqueue_message (id bigint) ON COMMIT DROP")

    assert "--no-migrations" in (said("E005", databases=["default"]).hint or "")


@pytest.mark.django_db
def test_e005_comes_before_tables_are_made_without_migrations(settings):
    run_sql("SET LOCAL search_path = pg_temp")

    assert found(databases=["default"]) == []

    settings.MIGRATION_MODULES = {"django_pgqueue": None}

    assert found(databases=["default"]) == ["django_pgqueue.E005"]


@pytest.mark.parametrize(
    ("database", "routers", "expected"),
    [
        ("other", [], ["django_pgqueue.W001"]),
        ("other", ["tests.test_checks.ElsewhereRouter", ROUTER], ["django_pgqueue.W001"]),
        ("other", [ROUTER], []),
        ("default", [], []),
    ],
)
def test_w001_wants_the_models_where_the_operations_look(settings, database, routers, expected):
    settings.PGQUEUE = {"DATABASE": database}
    settings.DATABASE_ROUTERS = routers

    assert found() == expected


# Values of PGQUEUE


@pytest.mark.parametrize(
    ("value", "says"),
    [
        pytest.param("fast", "PGQUEUE must be a dict, not 'fast'", id="no-dict"),
        ({"DATABASE": ["default"]}, "PGQUEUE['DATABASE'] must be an alias of DATABASES, or None"),
        ({"CACHE_SECONDS": "5"}, "must be a number of seconds, zero or more, not '5'"),
        ({"CACHE_SECONDS": float("nan")}, "must be a number of seconds"),
        ({"COPY_THRESHOLD": 1.5}, "PGQUEUE['COPY_THRESHOLD'] must be a whole number"),
        ({"EXACT_COUNT_LIMIT": True}, "must be a whole number, zero or more, not True"),
        ({"LOCK_SECONDS": -1}, "The default is 30.0"),
        ({"MAINTENANCE_SECONDS": "never"}, "zero or more, or None"),
        ({"ATTEMPTS_KEPT": -1}, "PGQUEUE['ATTEMPTS_KEPT'] must be a whole number, zero or more"),
        ({"TRACEBACK_LENGTH": None}, "PGQUEUE['TRACEBACK_LENGTH'] must be a whole number"),
        ({"MASK": r"sk_\w+"}, "PGQUEUE['MASK'] must be a list of regular expressions"),
        ({"MASK": ["("]}, "PGQUEUE['MASK'] must be a list of regular expressions"),
        ({"MASKED_KEYS": "pin"}, "PGQUEUE['MASKED_KEYS'] must be a list of words"),
        ({"QUEUES_FOR": len}, "must be the dotted name of a function, or None"),
        ({"OVERVIEW_TOKEN": 7}, "PGQUEUE['OVERVIEW_TOKEN'] must be text, or None"),
        ({"ADMIN_SHOWS": "topics"}, "'exports', 'rollups', 'batches', not 'topics'"),
        ({"ADMIN_SHOWS": ["topic"]}, "PGQUEUE['ADMIN_SHOWS'] must be a list of some of"),
    ],
)
def test_e006_says_what_a_value_must_be(settings, value, says):
    settings.PGQUEUE = value

    assert says in said("E006").msg


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("nope.f", "No module named 'nope'"),
        ("queues_for", "doesn't look like a module path"),
        ("tests.admin.access.theirs", 'does not define a "theirs"'),
        ("tests.settings.ROOT_URLCONF", "it is not a function"),
    ],
)
def test_e006_names_a_hook_that_cannot_be_called(settings, path, says):
    settings.PGQUEUE = {"QUEUES_FOR": path}

    message = said("E006")

    assert f"PGQUEUE['QUEUES_FOR'] is '{path}'" in message.msg
    assert says in message.msg


def test_a_hook_that_exists_has_no_message(settings):
    settings.PGQUEUE = {"QUEUES_FOR": "tests.admin.access.ours"}

    assert found() == []


@pytest.mark.parametrize("value", [5, ["DATABASE"], {"DATABASE": 5}])
def test_manage_py_check_reports_e006_beside_the_admin(value):
    code = (
        f"from tests import settings; settings.PGQUEUE = {value!r}; "
        "from django.core.management import execute_from_command_line as run; run(['', 'check'])"
    )
    known = {"DJANGO_SETTINGS_MODULE": "tests.settings", "DATABASE_URL": "postgres:///unused"}
    command = [sys.executable, "-c", code]

    done = subprocess.run(
        command, env={**os.environ, **known}, capture_output=True, text=True, check=False
    )

    assert "(django_pgqueue.E006) PGQUEUE" in done.stderr
    assert "1 issue" in done.stderr
    assert "Traceback" not in done.stderr


def test_e006_points_to_an_installed_file_that_explains_every_key(settings):
    settings.PGQUEUE = {"LOCK_SECONDS": "long"}

    [path] = re.findall(r"^(\S+\.py) ", said("E006").hint)

    docstring = ast.get_docstring(ast.parse(Path(path).read_text())) or ""
    assert [key for key in DEFAULTS if f"\n{key} " not in docstring] == []


def test_a_wrong_value_is_refused_where_it_is_used_too(settings):
    settings.PGQUEUE = {"LOCK_SECONDS": "long"}

    with pytest.raises(ImproperlyConfigured, match=r"LOCK_SECONDS.*number of seconds"):
        _ = ours.LOCK_SECONDS


# Handlers


@pytest.mark.parametrize(
    ("option", "says"),
    [("ack_policy='SOMETIMES'", "ack_policy must be one of ACK"), ("max_worker=3", "max_worker")],
)
def test_e007_names_the_line_of_a_handler_with_a_wrong_option(consumers_module, option, says):
    path = consumers_module(f"@consumer('orders', {option})\ndef charge(message): ...\n")

    message = said("E007")

    assert says in message.msg
    assert f"{path}, line " in message.hint


def test_e007_names_a_field_of_a_body_whose_type_is_unknown_once_all_is_imported(consumers_module):
    consumers_module(
        "import dataclasses\nfrom typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n  from shop.lines import Line\n"
        "@dataclasses.dataclass\nclass Order:\n  lines: 'list[Line]'\n  late: 'Late'\n"
        "@consumer('orders')\ndef charge(order: Order): ...\n"
        "@dataclasses.dataclass\nclass Late: ...\n"
    )

    message = said("E007")

    assert "tests.app.consumers.charge cannot be a consumer" in message.msg
    assert "name 'Line' is not defined. Import the name where the type is defined" in message.msg
    assert message.hint == "manage.py runconsumer stops with the same error."


def test_e011_names_a_schedule_without_a_queue(consumers_module):
    consumers_module(
        "from django_pgqueue import schedule\n"
        "@schedule(every=60)\n@consumer('orders')\ndef charge(message): ...\n"
        "@schedule(every=60)\ndef report(message): ...\n"
    )

    message = said("E011")

    assert message.msg == "The schedule tests.app.consumers.report has no queue."
    assert message.hint == "Add @consumer or @task to tests.app.consumers.report."
    assert message.is_serious()


def test_e007_names_two_handlers_of_one_queue(consumers_module):
    consumers_module(
        "@consumer('orders')\ndef charge(message): ...\n"
        "@consumer('Orders')\ndef ship(message): ...\n"
    )

    assert "tests.app.consumers.charge" in said("E007").msg


def test_e008_finds_two_handlers_that_name_the_database_differently(own_handlers):
    @consumer("orders")
    def charge(message: Any) -> None: ...

    @consumer("orders", using="default")
    def ship(message: Any) -> None: ...

    message = said("E008")

    assert "charge" in message.msg
    assert "ship" in message.msg


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("name", "hint"),
    [("order", "Did you mean 'orders'?"), ("mails", "CreateQueue('mails')")],
)
def test_w002_names_the_queue_that_was_meant_or_how_to_create_it(own_handlers, name, hint):
    Message.objects.create_queue("orders")

    @consumer(name)
    def charge(message: Any) -> None: ...

    message = said("W002", databases=["default"])

    assert f"no queue '{name}' in database 'default'" in message.msg
    assert hint in message.hint
    assert found() == []


@pytest.mark.django_db
def test_w002_waits_for_migrations_that_will_make_the_queue(own_handlers, settings):
    settings.MIGRATION_MODULES = {}

    @consumer("github")
    def listen(message: Any) -> None: ...

    assert found(databases=["default"]) == []


@pytest.mark.skipif(connections.settings["default"].get("OPTIONS", {}).get("pool"), reason="pooled")
def test_w005_compares_the_pool_with_the_workers(own_handlers, monkeypatch):
    @consumer("orders", max_workers=6)
    def charge(message: Any) -> None: ...

    @consumer("mails")
    async def post(message: Any) -> None: ...

    options = connections.settings["default"].setdefault("OPTIONS", {})
    monkeypatch.setitem(options, "pool", {"min_size": 2, "max_size": 10})

    message = said("W005")

    assert "has 10 connections" in message.msg
    assert "has 7 workers" in message.msg
    assert "['max_size'] to 11 or more" in (message.hint or "")
    monkeypatch.setitem(options, "pool", {"max_size": 11})
    assert found() == []


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The default database's settings with the embedded engine, outside of a test runner."""
    monkeypatch.delattr(mail, "outbox")
    before = connections["default"]
    known = {**before.settings_dict, "ENGINE": "django_pgqueue.embedded"}
    monkeypatch.setattr(connections, "settings", {"default": known})
    connections["default"] = base.DatabaseWrapper(known)
    yield known
    connections["default"] = before


def test_w006_warns_of_an_embedded_database_without_debug(embedded, settings):
    settings.DEBUG = False

    message = said("W006")

    assert message.msg.startswith("Database 'default' is embedded, and DEBUG is off")
    assert "DATABASES['default']['ENGINE'] to 'django.db.backends.postgresql'" in message.hint
    settings.DEBUG = True
    assert found() == []


def test_w006_is_silent_in_a_test_runner(embedded, settings, monkeypatch):
    settings.DEBUG = False
    monkeypatch.setattr(mail, "outbox", [], raising=False)

    assert found() == []


def test_e012_tells_why_an_embedded_server_cannot_start(embedded, settings):
    settings.DEBUG = True
    embedded["EMBEDDED_BIN_DIR"] = "/nowhere"
    embedded["EMBEDDED_DIRECTORY"] = "/nowhere/postgres"

    message = said("E012")

    assert "EMBEDDED_BIN_DIR is /nowhere, which has no pg_ctl" in message.msg
    assert message.is_serious()


@pytest.mark.django_db
def test_w004_warns_of_a_pooler_in_transaction_mode(own_handlers, pgbouncer, monkeypatch):
    Message.objects.create_queue("orders")

    @consumer("orders")
    def charge(message: Any) -> None: ...

    assert found(databases=["default"]) == []
    names = {"host": "HOST", "port": "PORT", "user": "USER", "dbname": "NAME"}
    pooled = {name: pgbouncer[key] for name, key in names.items()}
    monkeypatch.setattr(listener, "parameters", lambda alias: pooled)

    message = said("W004", databases=["default"])

    assert "which does not pass on notifications" in message.msg
    assert "--no-listen" in (message.hint or "")


# Database objects


@pytest.fixture
def kinds(db: None, own_handlers: None) -> None:
    """A queue of each kind of storage."""
    for name, options in {
        "plain": {},
        "fast": {"unlogged": True},
        "daily": {"partition_interval": 86400},
    }.items():
        Message.objects.create_queue(name, **options)


def own(name: str, parent: str = "message") -> str:
    return f"pgqueue_{parent}_q{Queue.objects.get(name=name).pk}"


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        ("DROP TRIGGER pgqueue_message_inserted ON {plain}", "inserted of {plain} is missing"),
        ("DROP TRIGGER pgqueue_message_inserted ON {daily}", "inserted of {daily} is missing"),
        (
            "DROP TRIGGER pgqueue_message_inserted ON {daily}_default",
            "inserted of {daily}_default is missing",
        ),
        (
            "DROP TRIGGER pgqueue_message_inserted ON pgqueue_message",
            "pgqueue_message_inserted of pgqueue_message is missing",
        ),
        (
            "ALTER TABLE pgqueue_ready DISABLE TRIGGER pgqueue_members_gone",
            "pgqueue_members_gone of pgqueue_ready is disabled",
        ),
        (
            "DROP TRIGGER pgqueue_message_inserted ON {fast}; CREATE TRIGGER "
            "pgqueue_message_inserted AFTER INSERT ON {fast} "
            "FOR EACH STATEMENT EXECUTE FUNCTION pgqueue_message_inserted()",
            "pgqueue_message_inserted of {fast} was altered",
        ),
    ],
)
def test_e009_finds_a_trigger_that_is_not_the_migrations_and_its_hint_mends_it(kinds, harm, says):
    names = {name: own(name) for name in ("plain", "fast", "daily")}
    run_sql(harm.format(**names))

    message = said("E009", databases=["default"])

    assert says.format(**names) in message.msg
    run_sql(str(message.hint))
    assert found(databases=["default"]) == []


def test_e009_finds_functions_that_were_dropped_or_altered(kinds):
    run_sql("DROP FUNCTION pgqueue_claim_keys")
    run_sql(
        "CREATE OR REPLACE FUNCTION pgqueue_wake(queue_number integer) RETURNS boolean "
        "LANGUAGE sql AS 'SELECT true'"
    )

    errors = list(checks.run_checks(databases=["default"]))

    assert {each.id for each in errors} == {"django_pgqueue.E009"}
    assert sorted(each.msg for each in errors) == [
        "In database 'default', function pgqueue_claim_keys is missing.",
        "In database 'default', function pgqueue_wake was altered.",
    ]
    assert "sqlmigrate" in (errors[0].hint or "")


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (
            "ALTER TABLE pgqueue_message DETACH PARTITION {plain}",
            "{plain} of queue 'plain' is not a partition of pgqueue_message",
        ),
        ("ALTER TABLE {fast} SET LOGGED", "{fast} of queue 'fast' is not unlogged"),
    ],
)
def test_e010_finds_an_altered_table_of_a_queue_and_its_hint_mends_it(kinds, harm, says):
    names = {name: own(name) for name in ("plain", "fast")}
    run_sql(harm.format(**names))

    message = said("E010", databases=["default"])

    assert says.format(**names) in message.msg
    run_sql(str(message.hint))
    assert found(databases=["default"]) == []


def test_e010_finds_a_table_that_is_gone(kinds):
    run_sql(f"DROP TABLE {own('daily', 'archive')}")

    message = said("E010", databases=["default"])

    assert f"{own('daily', 'archive')} of queue 'daily' is missing" in message.msg
    assert "delete the queue and create it again" in (message.hint or "")


@pytest.mark.parametrize("state", ["older", "newer"])
def test_objects_are_compared_with_this_releases_migrations_only(kinds, state):
    run_sql("DROP FUNCTION pgqueue_claim_keys")
    recorder = MigrationRecorder(connection)
    if state == "older":
        recorder.record_unapplied("django_pgqueue", "0004_attempts_and_schedules")
    else:
        recorder.record_applied("django_pgqueue", "9999_of_the_next_release")

    assert found(databases=["default"]) == []


@pytest.mark.django_db
def test_w003_compares_deliveries_with_attempts(own_handlers):
    Message.objects.create_queue("orders", max_deliveries=5)
    Message.objects.create_queue("mails", max_deliveries=20)

    @consumer("orders")
    def charge(message: Any) -> None: ...

    @consumer("mails", retry=Constant(max_attempts=20))
    def post(message: Any) -> None: ...

    message = said("W003", databases=["default"])

    assert "10 attempts" in message.msg
    assert "5 times at most" in message.msg


@pytest.mark.django_db
def test_w003_names_a_strategy_without_a_limit(own_handlers):
    for name in ("orders", "mails", "hooks"):
        Message.objects.create_queue(name, max_deliveries=20)

    @consumer("orders", retry=Exponential(first=1))
    def charge(message: Any) -> None: ...

    @consumer("mails", retry=Exponential(first=1, max_total_delay=600))
    def post(message: Any) -> None: ...

    @consumer("hooks")
    def call(message: Any) -> None: ...

    message = said("W003", databases=["default"])

    assert "charge tries a message without a limit" in message.msg
    assert "20 times at most" in message.msg
    assert "max_attempts=10, jitter=True" in (message.hint or "")


# W007


@pytest.fixture
def project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_handlers: None, settings: Any
) -> Callable[..., list[checks.CheckMessage]]:
    """Write files of a project whose app is ``shop``. Returns the messages of W007."""
    packages = {"shop/__init__.py": "", "shop/jobs/__init__.py": "", "site6/__init__.py": ""}

    def write(files: dict[str, str]) -> list[checks.CheckMessage]:
        for name, text in {**packages, **files}.items():
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        importlib.invalidate_caches()
        settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "shop"]
        return [each for each in checks.run_checks() if each.id == "django_pgqueue.W007"]

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "site6.settings")
    site = ModuleType("site6")
    site.__file__ = str(tmp_path / "site6" / "__init__.py")
    monkeypatch.setitem(sys.modules, "site6", site)
    before = set(sys.modules)
    yield write
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("shop", "forgotten"):
            del sys.modules[name]


HANDLER = "from django_pgqueue import consumer\n\n@consumer('orders')\ndef charge(message): ...\n"


@pytest.mark.parametrize(
    "text",
    [
        HANDLER,
        HANDLER.replace("def", "async def"),
        "import django_pgqueue as q\n@q.consumer('orders')\ndef charge(message): ...\n",
        "from django_pgqueue.handlers import consumer as on\n@on('a')\ndef charge(message): ...\n",
        "from django_pgqueue.schedules import schedule\ntry:\n  @schedule(every=60)\n  @task\n"
        "  def charge(): ...\nfinally: pass",
    ],
)
@pytest.mark.parametrize(
    ("file", "module"), [("shop/late.py", "late"), ("shop/jobs/late.py", "jobs")]
)
def test_w007_names_a_file_with_handlers_that_nothing_imports(project, text, file, module):
    [message] = project({file: text, "shop/consumers.py": ""})

    assert message.msg.endswith(
        "late.py has handlers (charge), but is never imported, so no consumer runs them."
    )
    package = "shop" if module == "late" else "shop.jobs"
    assert f"consumers.py of the app: from {package} import late." in message.hint


@pytest.mark.parametrize(
    "files",
    [
        {"shop/late.py": HANDLER, "shop/consumers.py": "from shop import late"},
        {"shop/consumers.py": HANDLER},
        {"shop/tests.py": HANDLER},
        {"shop/test_late.py": HANDLER},
        {"shop/tests/late.py": HANDLER, "shop/tests/__init__.py": ""},
        {"shop/late.py": HANDLER.replace("django_pgqueue", "another")},
        {"shop/late.py": f'"""::\n\n{HANDLER}"""\nfrom django_pgqueue import consumer'},
        {
            "shop/late.py": "from django_pgqueue import consumer\ndef make():\n  @consumer('a')\n"
            "  def charge(message): ..."
        },
        {"shop/late.py": f"{HANDLER}this is no Python"},
        {"forgotten/consumers.py": HANDLER, "forgotten/__init__.py": ""},
    ],
    ids=str,
)
def test_w007_is_silent_about_what_is_imported_or_defines_no_handler(project, files):
    assert project(files) == []


@pytest.mark.parametrize(
    ("files", "app"),
    [
        ({"forgotten/apps.py": "", "forgotten/consumers.py": HANDLER}, "forgotten"),
        ({"site6/consumers.py": HANDLER}, "site6"),
    ],
    ids=["an app", "the settings' package"],
)
def test_w007_names_an_app_that_is_not_installed(project, files, app):
    [message] = project(files)

    assert f"handlers (charge), but its app {app!r} is not installed" in message.msg
    assert "INSTALLED_APPS" in message.hint
