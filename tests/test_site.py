"""The documentation site, as built by ``run.py docs``."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

from run import NEEDS
from tests.admin.conftest import chromium
from tests.test_docs import ROOT
from tools.public_names import PUBLIC

__all__ = ["chromium"]

pytest.importorskip("sphinx", reason="builds the site with Sphinx")

pytestmark = pytest.mark.slow

#: Packages that the tests need and the site does not: the build must not import them.
MISSING = [
    "celery",
    "environ",
    "example_project",
    "factory",
    "pytest",
    "prometheus_client",
    "tests",
]

BUILD = """
import sys
sys.modules.update(dict.fromkeys({missing}))
from sphinx.cmd.build import main
sys.exit(main(["-q", "-W", "--keep-going", "-b", "html", "docs", {target!r}]))
"""

#: Search words, and the page that each should find.
SOUGHT = {
    "background": "tasks",
    "backoff": "retries",
    "celery": "moving_from_celery",
    "concurrency": "limits",
    "countdown": "operations",
    "cron": "schedules",
    "deduplication": "once",
    "delay": "operations",
    "docker": "docker",
    "kubernetes": "docker",
    "monitoring": "monitoring",
    "multi-tenant": "tenants",
    "periodic": "schedules",
    "publish": "sending",
    "rate": "limits",
    "recurring": "schedules",
    "retry": "retries",
    "shutdown": "docker",
    "throttle": "limits",
    "uninstall": "upgrades",
    "unique": "once",
    "worker": "consumer",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    script = tmp_path_factory.mktemp("build") / "build.py"  # Sphinx reads the source of __main__
    script.write_text(BUILD.format(missing=MISSING, target=str(target)))
    command = [sys.executable, str(script)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return target


def test_the_site_needs_only_what_its_group_installs(site):
    assert NEEDS["docs"] == ["--group=docs"]
    assert (site / "index.html").exists()


def test_the_first_page_begins_with_a_picture_and_an_example(site):
    first, _, _ = (site / "index.html").read_text().partition("<h2")

    assert "_images/admin.png" in first
    assert "consumer" in re.findall(r"<pre>.*?</pre>", first, re.DOTALL)[0]


def test_a_module_in_the_list_of_public_names_leads_to_its_page(site):
    text = (site / "stability.html").read_text().partition("<article")[2]

    assert [module for module in PUBLIC if f'href="api/{module}.html"' not in text] == []


@pytest.mark.browser
@pytest.mark.parametrize(("word", "wanted"), SOUGHT.items())
def test_a_search_finds_the_page(site, chromium, word, wanted):
    page = chromium.new_page()
    page.goto(f"{site.as_uri()}/search.html?q={quote(word)}")
    page.get_by_text("Search finished").wait_for()
    found = page.eval_on_selector_all(
        "#search-results li > a", "links => links.map(each => each.getAttribute('href'))"
    )
    page.close()

    # Results from the API reference may come first.
    pages = [link.partition(".html")[0] for link in found if not link.startswith("api/")]
    assert wanted in pages[:2], found[:6]


@pytest.mark.browser
def test_the_settings_can_be_read_on_a_phone(site, chromium):
    page = chromium.new_page(viewport={"width": 390, "height": 844})
    page.goto(f"{site.as_uri()}/settings.html")
    hidden = page.eval_on_selector_all(
        "article table td",
        "cells => cells.filter(each => each.getBoundingClientRect().right > innerWidth).length",
    )
    cells = page.locator("article table td").count()
    page.close()

    assert cells > 50
    assert hidden == 0


@pytest.mark.browser
def test_the_first_screen_has_the_picture_and_the_example(site, chromium):
    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    page.goto(f"{site.as_uri()}/index.html")
    ends = [
        page.locator(each).first.bounding_box()
        for each in ("article img", "article pre >> nth=0", "article pre >> nth=1")
    ]
    page.close()

    assert [box["y"] + box["height"] < 900 for box in ends] == [True, True, True]
