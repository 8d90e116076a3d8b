"""Statement texts with the names of a queue's tables, and their cache."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import django_pgqueue.engine
from django_pgqueue.engine.statements import Part, render

ENGINE = Path(django_pgqueue.engine.__file__).parent


def test_a_text_is_made_once_for_the_same_queue():
    assert render("send/send", 7) is render("send/send", 7)


def test_a_path_stands_for_the_text_of_a_file():
    text = render("settle/archive", 7)

    assert "(id, read_ct, last_read_at) IN (" in text
    assert "pgqueue_deferred.last_read_at" in text


def test_a_name_can_stand_for_a_part():
    each = render("read/read_ready", 7, (("leased", Part("read/lease_each")),))
    batch = render("read/read_ready", 7, (("leased", Part("read/lease_batch")),))

    assert "INSERT INTO pgqueue_deferred" in each
    assert "INSERT INTO pgqueue_lease" in batch


def test_each_queue_has_texts_of_its_own():
    texts = {
        render("read/peek", 7),
        render("read/peek", 8),
        render("read/next_due", 7),
    }

    assert len(texts) == 3


def test_every_statement_is_named_by_the_python_beside_it():
    statements = sorted(ENGINE.glob("*/*.sql"))
    assert len(statements) > 30

    for statement in statements:
        folder = statement.parent
        name = f"{folder.name}/{statement.stem}"
        files = (*folder.glob("*.py"), ENGINE / "open_queue.py")
        beside = "".join(file.read_text() for file in files)
        parts = "".join(file.read_text() for file in ENGINE.rglob("*.sql"))
        family = f'f"{folder.name}/{{operation}}' in beside
        assert f'"{name}"' in beside or f"{{{name}}}" in parts or family, name


@pytest.mark.parametrize("shared", ["places", "reasons"])
def test_every_part_that_statements_share_is_in_one(shared):
    text = (ENGINE / f"{shared}.sql").read_text()
    parts = re.findall(r"^-- (\{\w+/\w+\})", text, re.MULTILINE)
    assert len(parts) > 5
    statements = "".join(file.read_text() for file in ENGINE.parent.rglob("*.sql"))

    for part in parts:
        assert re.search(rf"^(?!-- ).*{part}", statements, re.MULTILINE), part


def test_the_engine_imports_nothing_of_djangos_models():
    files = sorted(ENGINE.rglob("*.py"))
    assert len(files) > 10

    for file in files:
        text = file.read_text()
        assert "from django.db.models" not in text, file
        assert "import models" not in text, file
