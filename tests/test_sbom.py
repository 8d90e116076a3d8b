"""A release's software bill of materials."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def bill(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    pytest.importorskip("cyclonedx_py")
    output = tmp_path_factory.mktemp("release") / "sbom.json"
    subprocess.run([sys.executable, "tools/sbom.py", output], cwd=ROOT, check=True)
    found: dict[str, Any] = json.loads(output.read_text())
    return found


def test_the_bill_names_the_package(bill):
    component = bill["metadata"]["component"]

    assert (bill["bomFormat"], component["name"]) == ("CycloneDX", "django-postgres-mq")
    assert f'version = "{component["version"]}"' in (ROOT / "pyproject.toml").read_text()


def test_the_bill_lists_every_installed_package_at_its_pinned_version(bill):
    listed = {each["name"].lower(): each["version"] for each in bill["components"]}
    pins = (ROOT / "constraints.txt").read_text().splitlines()

    assert {"django", "psycopg"} <= listed.keys()
    assert {"pytest", "pyspark"}.isdisjoint(listed)
    for name, version in listed.items():
        assert any(f"{pin} ".startswith(f"{name}=={version} ") for pin in pins)


def test_the_bill_has_the_hash_of_each_package(bill):
    for each in bill["components"]:
        hashes = [
            digest
            for reference in each["externalReferences"]
            for digest in reference.get("hashes", [])
        ]
        assert [digest["alg"] for digest in hashes] == ["SHA-256"]
        assert each["purl"] == f"pkg:pypi/{each['name'].lower()}@{each['version']}"
