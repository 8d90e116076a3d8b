"""The supported versions agree wherever they are named."""

from __future__ import annotations

import configparser
import itertools
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import django_pgqueue

if sys.version_info < (3, 11):
    pytest.skip("reads pyproject.toml by tomllib", allow_module_level=True)

import tomllib

ROOT = Path(__file__).resolve().parent.parent
WORKFLOW: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def of_workflow() -> set[tuple[str, str]]:
    matrix = WORKFLOW["jobs"]["suite"]["strategy"]["matrix"]
    excluded = {(each["python"], each["django"]) for each in matrix["exclude"]}
    included = {(each["python"], each["django"]) for each in matrix["include"]}
    return set(itertools.product(matrix["python"], matrix["django"])) - excluded | included


def of_tox() -> set[tuple[str, str]]:
    config = configparser.ConfigParser(interpolation=None)
    config.read(ROOT / "tox.ini")
    pairs = set()
    for line in config["tox"]["env_list"].split():
        if not line.startswith("py"):
            continue
        pythons, djangos = line.removeprefix("py").split("-django")
        for python, django in itertools.product(alternatives(pythons), alternatives(djangos)):
            pairs.add((f"{python[0]}.{python[1:]}", f"{django[0]}.{django[1:]}"))
    return pairs


def alternatives(text: str) -> list[str]:
    return text.strip("{}").split(",")


def classified(prefix: str) -> set[str]:
    found = (re.fullmatch(rf"{prefix} :: (\d+\.\d+)", each) for each in PROJECT["classifiers"])
    return {each[1] for each in found if each}


def test_the_workflow_has_the_matrix_of_tox():
    assert of_workflow() == of_tox()


def test_the_environments_of_django_52_have_its_tasks():
    config = configparser.ConfigParser(interpolation=None)
    config.read(ROOT / "tox.ini")

    assert config["testenv"]["extras"].split() == ["django52:", "tasks"]
    assert [*PROJECT["optional-dependencies"]["tasks"]] == ["django-tasks>=0.12"]


def test_the_matrix_is_what_the_classifiers_promise():
    pythons, djangos = zip(*of_tox(), strict=True)

    assert set(pythons) == classified("Programming Language :: Python")
    assert set(djangos) == classified("Framework :: Django")
    assert PROJECT["requires-python"] == f">={min(pythons, key=lambda each: int(each[2:]))}"


def test_the_page_on_stability_names_the_same_versions():
    page = (ROOT / "docs" / "stability.md").read_text()
    matrix = WORKFLOW["jobs"]["suite"]["strategy"]["matrix"]
    servers = {*matrix["postgres"], *(each["postgres"] for each in matrix["include"])}

    assert "| Python | 3.10 to 3.14 |" in page
    assert f"| Django | {', '.join(sorted(classified('Framework :: Django')))} |" in page
    assert f"| PostgreSQL | {min(servers)} to {max(servers)} |" in page


def test_every_step_of_the_workflow_runs_or_uses_something():
    for job in WORKFLOW["jobs"].values():
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step)


def test_the_workflow_runs_the_commands_of_a_release():
    page = (ROOT / "docs" / "development.md").read_text().partition("## A release")[2]
    commands = re.findall(r"^    (.+?)(?:  +#.*)?$", page.partition("## Imports")[0], re.M)
    steps = [step.get("run", "") for job in WORKFLOW["jobs"].values() for step in job["steps"]]

    assert len(commands) == 4
    for command in commands:
        assert any(step.endswith(command.removeprefix("python3")) for step in steps), command


def test_the_version_is_the_same_everywhere():
    versions = re.findall(
        r"^## (\d\S*) - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.M
    )

    assert versions[0] == PROJECT["version"] == django_pgqueue.__version__
