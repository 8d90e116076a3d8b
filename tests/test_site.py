"""The documentation site, as built by ``run.py docs``."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from run import NEEDS
from tests.admin.conftest import chromium
from tests.test_docs import ROOT
from tools.public_names import PUBLIC

__all__ = ["chromium"]

pytest.importorskip("sphinx", reason="builds the site with Sphinx")

pytestmark = pytest.mark.slow


def slug(heading: str) -> str:
    return re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")


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
    "exactly once": "guarantees",
    "delay": "operations",
    "docker": "docker",
    "fan-out": "workflows",
    "huey": "moving_from_huey",
    "kubernetes": "docker",
    "monitoring": "monitoring",
    "multi-tenant": "tenants",
    "neon": "managed_postgresql",
    "periodic": "schedules",
    "publish": "sending",
    "rate": "limits",
    "rds": "managed_postgresql",
    "recurring": "schedules",
    "redis": "faq",
    "retry": "retries",
    "scale": "scaling",
    "shutdown": "docker",
    "throttle": "limits",
    "uninstall": "upgrades",
    "unique": "once",
    "worker": "consumer",
    "workflow": "workflows",
}

FAQ = re.findall(r"^## (.+)$", (ROOT / "docs" / "faq.md").read_text(), re.MULTILINE)

#: Questions as people type them, and the answer that comes first.
ASKED = {
    **{question: f"faq.html#{slug(question)}" for question in FAQ},
    "why is it slow": "faq.html#why-is-it-slow",
    "retry a failed one from code": "faq.html#how-do-i-retry-a-failed-one-from-code",
    "can two workers get the same job": "faq.html#can-two-workers-get-the-same-job",
    "send to many consumers": "faq.html#how-do-i-send-to-many-consumers",
    "how to scale": "scaling.html",
    "do I need redis": "faq.html#do-i-need-redis",
    "deploy": "deployment.html",
    "async views": "faq.html#can-async-views-send",
    "chains": "workflows.html#chains",
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


@pytest.fixture
def search(site: Path, chromium: Any) -> Callable[[str], list[str]]:
    """The links that the site's search shows, the first hit first."""

    def search(words: str) -> list[str]:
        page = chromium.new_page()
        page.goto(f"{site.as_uri()}/search.html?q={quote(words)}")
        page.get_by_text("Search finished").wait_for()
        found: list[str] = page.eval_on_selector_all(
            "#search-results li > a", "links => links.map(each => each.getAttribute('href'))"
        )
        page.close()
        return found

    return search


def test_there_are_fifteen_questions():
    assert len(FAQ) == len(set(FAQ)) == 15


@pytest.mark.browser
@pytest.mark.parametrize(("question", "answer"), ASKED.items())
def test_the_first_hit_answers_a_question(search, question, answer):
    assert search(question)[:1] == [answer]


@pytest.mark.browser
@pytest.mark.parametrize(("word", "wanted"), SOUGHT.items())
def test_a_search_finds_the_page(search, word, wanted):
    found = search(word)

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


def test_the_menu_begins_with_the_ten_pages_of_the_first_week(site):
    text = (site / "index.html").read_text().partition('class="sidebar-tree"')[2]
    captions = re.findall(r'<span class="caption-text">(.*?)</span>', text)
    first = re.search(r"<ul>.*?</ul>", text, re.DOTALL)

    assert captions[0] == "The first week"
    assert all(caption.startswith("When you") for caption in captions[1:])
    assert first
    assert len(re.findall(r"<li ", first[0])) == 10
