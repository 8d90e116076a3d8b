"""The text of a statement, with the names of a queue's tables."""

from __future__ import annotations

from django_pgqueue import ddl, queries


def test_a_text_is_made_once_for_the_same_names() -> None:
    one = queries.render("send", ddl.table_names(7))

    assert queries.render("send", ddl.table_names(7)) is one


def test_other_names_make_another_text() -> None:
    names = ddl.table_names(7)

    texts = {
        queries.render("pop", names),
        queries.render("pop", ddl.table_names(8)),
        queries.render("pop", ddl.table_names(7, unlogged=True)),
        queries.render("pop", {**names, "ready": "elsewhere"}),
        queries.render("peek", names),
    }

    assert len(texts) == 5
