"""The public names of the package."""

from __future__ import annotations

import ast
import inspect
import re
import rlcompleter
from importlib import import_module
from pathlib import Path

import jedi
import pytest

import django_pgqueue
from tests.tasks.framework import HAS_TASKS
from tools.public_names import PUBLIC

ROOT = Path(__file__).resolve().parent.parent


def test_every_promised_name_is_there():
    for name in django_pgqueue.__all__:
        assert getattr(django_pgqueue, name) is not None


#: Modules of the top level that others import by a name of their own: Django, migrations, pytest.
FOUND_BY_NAME = {"__init__", "apps", "checks", "conf", "pytest_plugin", "validators"}


def test_the_top_level_has_only_modules_that_a_user_may_import():
    modules = {path.stem for path in Path(django_pgqueue.__file__).parent.glob("*.py")}

    assert modules - FOUND_BY_NAME <= {name.partition(".")[2] for name in PUBLIC}


def test_a_shell_completes_the_promised_names_only():
    shell = rlcompleter.Completer({"django_pgqueue": django_pgqueue})

    completed = shell.attr_matches("django_pgqueue.")

    names = {each.partition(".")[2].partition("(")[0] for each in completed}
    assert names == {name for name in dir(django_pgqueue) if not name.startswith("_")}
    assert names == set(django_pgqueue.__all__)


def test_a_name_that_is_not_promised_is_refused():
    assert not hasattr(django_pgqueue, "broker")


def test_type_checkers_see_the_same_names():
    stub = Path(django_pgqueue.__file__).with_suffix(".pyi").read_text()
    imported = {
        alias.asname
        for node in ast.parse(stub).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    assert imported == set(django_pgqueue.__all__) == set(django_pgqueue._HOMES)


def test_the_decorator_is_not_hidden_by_a_module_of_its_name():
    import django_pgqueue.worker

    assert callable(django_pgqueue.consumer)


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_are_exported_and_documented(module):
    if module == "django_pgqueue.tasks" and not HAS_TASKS:
        pytest.skip("Django 5.2 has tasks by django-tasks")
    found = import_module(module)

    for name in PUBLIC[module]:
        value = getattr(found, name)
        assert name in found.__all__
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__, name


def test_the_page_on_stability_lists_the_public_names():
    page = (ROOT / "docs" / "stability.md").read_text()

    rows = re.findall(r"^\| `(django_pgqueue[\w.]*)` \| (.*) \|$", page, re.MULTILINE)

    assert {module: re.findall(r"`(\w+)`", names) for module, names in rows} == PUBLIC


@pytest.mark.parametrize(
    "shown",
    [
        "batch_size: int=100",
        "ack_policy: AckPolicy | AckPolicyName=AckPolicy.NACK_ON_ERROR",
        "retry: RetryStrategy=Exponential(first=1, longest=300, max_attempts=10, jitter=True)",
    ],
)
def test_an_editor_shows_the_defaults_of_the_decorator(shown):
    call = "from django_pgqueue import consumer\nconsumer("

    [signature] = jedi.Script(call, project=jedi.Project(ROOT)).get_signatures()

    assert shown in [parameter.to_string() for parameter in signature.params]
