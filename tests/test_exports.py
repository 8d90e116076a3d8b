"""The names that the package promises at its top."""

from __future__ import annotations

import ast
from pathlib import Path

import django_pgqueue


def test_every_promised_name_is_there() -> None:
    for name in django_pgqueue.__all__:
        assert getattr(django_pgqueue, name) is not None


def test_a_name_that_is_not_promised_is_refused() -> None:
    assert not hasattr(django_pgqueue, "broker")


def test_type_checkers_see_the_same_names() -> None:
    stub = Path(django_pgqueue.__file__).with_suffix(".pyi").read_text()
    imported = {
        alias.asname
        for node in ast.parse(stub).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    assert imported == set(django_pgqueue.__all__) == set(django_pgqueue._HOMES)


def test_the_decorator_is_not_hidden_by_a_module_of_its_name() -> None:
    import django_pgqueue.worker

    assert callable(django_pgqueue.consumer)
