"""Each check, by its id: silent when all is well, and what it says when it is not."""

from __future__ import annotations

from typing import Any

import pytest
from django.core import checks
from django.db import OperationalError, connection, connections

ROUTER = "django_pgqueue.routers.QueueRouter"


class ElsewhereRouter:
    """A router of somebody else, who keeps our models in the default database."""

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "default"


def found(*, databases: list[str] | None = None) -> list[str]:
    """The ids of what our checks say."""
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


@pytest.mark.django_db(databases=["default", "other"])
def test_nothing_is_said_of_a_sound_configuration() -> None:
    assert found(databases=["default", "other"]) == []


def test_e001_names_the_key_that_was_meant(settings: Any) -> None:
    settings.PGQUEUE = {"CACHE_SECONDS": 1, "COPY_TRESHOLD": 5}

    message = said("E001")

    assert "'COPY_TRESHOLD'" in message.msg
    assert message.hint == "Did you mean 'COPY_THRESHOLD'?"


def test_e001_lists_the_keys_when_none_is_close(settings: Any) -> None:
    settings.PGQUEUE = {"zzz": 1}

    assert "DATABASE" in (said("E001").hint or "")


def test_e002_asks_for_postgresql(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "vendor", "sqlite")
    monkeypatch.setattr(connection, "display_name", "SQLite")

    assert "'default' is SQLite" in said("E002").msg


def test_e002_looks_at_the_database_of_the_queues_only(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.PGQUEUE = {"DATABASE": "other"}
    settings.DATABASE_ROUTERS = [ROUTER]
    monkeypatch.setattr(connection, "vendor", "sqlite")

    assert found() == []


@pytest.mark.django_db
def test_e003_refuses_a_server_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(connections["default"]), "pg_version", 140_012)

    assert "is PostgreSQL 14" in said("E003", databases=["default"]).msg
    assert found(databases=["other"]) == []
    assert found() == []


def test_a_database_that_is_down_is_left_to_who_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise OperationalError("connection refused")

    wrapper = connections["default"]
    monkeypatch.setattr(type(wrapper), "ensure_connection", refuse)
    monkeypatch.setattr(wrapper, "connection", None)
    vars(wrapper).pop("pg_version", None)

    assert found(databases=["default"]) == []


def test_e004_names_the_alias_that_is_missing(settings: Any) -> None:
    settings.PGQUEUE = {"DATABASE": "queue"}

    message = said("E004")

    assert "'queue'" in message.msg
    assert "'default', 'other'" in (message.hint or "")
    assert found(databases=["default", "other"]) == ["django_pgqueue.E004"]


@pytest.mark.django_db
def test_e005_notices_tables_that_no_migration_made() -> None:
    with connection.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE pgqueue_message (id bigint) ON COMMIT DROP")

    assert "--no-migrations" in (said("E005", databases=["default"]).hint or "")


@pytest.mark.django_db
def test_e005_comes_before_tables_are_made_without_migrations(settings: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL search_path = pg_temp")

    assert found(databases=["default"]) == []

    settings.MIGRATION_MODULES = {"django_pgqueue": None}

    assert found(databases=["default"]) == ["django_pgqueue.E005"]


@pytest.mark.parametrize(
    ("routers", "expected"),
    [
        pytest.param([], ["django_pgqueue.W001"], id="no-router"),
        pytest.param(
            ["tests.test_checks.ElsewhereRouter", ROUTER],
            ["django_pgqueue.W001"],
            id="another-router-first",
        ),
        pytest.param([ROUTER], [], id="ours"),
    ],
)
def test_w001_wants_the_models_where_the_operations_look(
    settings: Any, routers: list[str], expected: list[str]
) -> None:
    settings.PGQUEUE = {"DATABASE": "other"}
    settings.DATABASE_ROUTERS = routers

    assert found() == expected


def test_w001_has_nothing_against_the_default_database(settings: Any) -> None:
    settings.PGQUEUE = {"DATABASE": "default"}

    assert found() == []
