"""The text of a statement, with the names of a queue's tables."""

from __future__ import annotations

from django_pgqueue import ddl, queries


def test_a_text_is_made_once_for_the_same_names() -> None:
    one = queries.render("send", ddl.table_names(7))

    assert queries.render("send", ddl.table_names(7)) is one


def test_what_is_no_table_is_a_part_with_a_file_of_its_own() -> None:
    names = ddl.table_names(7)

    own = queries.render("read", {**names, "any_body": "true"})
    other = queries.render(
        "read", {**names, "any_body": "true", "bodies": queries.Part("bodies_of_any")}
    )

    assert "FROM pgqueue_message_q7 m\n    WHERE m.id = t.id" in own
    assert "pgqueue_bodies(\n    7, " in other


def test_a_text_for_any_queue_names_none() -> None:
    names = ddl.names_for_any(unlogged=True)

    assert "INSERT INTO pgqueue_message (queue_id" in queries.render("send", names)
    assert "VALUES ((SELECT %(queue_id)s::integer), " in queries.render("send", names)


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
