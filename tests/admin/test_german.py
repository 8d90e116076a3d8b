"""The German catalogue is complete."""

from __future__ import annotations

import gettext
import html
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.utils import translation

import django_pgqueue
from django_pgqueue.templatetags.pgqueue_admin import decimal, lapse, number, percent
from tests.admin import scenes
from tools.field_texts import field_texts
from tools.screenshots import pages

ROOT = Path(__file__).resolve().parents[2]
CATALOGUE = Path(django_pgqueue.__file__).parent / "locale/de/LC_MESSAGES"


def entries() -> Iterator[tuple[str, list[str]]]:
    """Each message of the .po file, with its translations."""
    for block in (CATALOGUE / "django.po").read_text().split("\n\n")[1:]:
        parts = re.findall(r'^(msg\w+)(?:\[\d\])? "(.*)"$', block, re.MULTILINE)
        told = [_plain(text) for kind, text in parts if kind == "msgstr"]
        yield _plain(dict(parts)["msgid"]), told


PLACEHOLDER = re.compile(r"%\(\w+\)s|%s|\{\}")
#: Errors written by the scene's handlers.
ERRORS = re.compile(r"CardDeclined|the bank")


def english() -> Iterator[tuple[str, re.Pattern[str]]]:
    """Each message whose translation differs, with a pattern that matches it on a page."""
    for msgid, told in entries():
        words = PLACEHOLDER.split(msgid)
        if msgid not in told and re.search("[A-Za-z]{2}", "".join(words)):
            pattern = ".+".join(re.escape(word.replace("%%", "%")) for word in words)
            yield msgid, re.compile(f"{pattern}:?")


def labels(text: str) -> set[str]:
    """All text of a page, including text for screen readers."""
    # Skips other apps' words, and texts that Django does not translate.
    text = re.sub(r'<div class="app-(?!django_pgqueue).*?</table>', "", text, flags=re.DOTALL)
    text = re.sub(r'<img src="[^"]*admin/img/[^>]*>', "", text)
    text = re.sub(r"<(script|style|textarea|pre)\b.*?</\1>", "", text, flags=re.DOTALL)
    said = re.split(r"<[^>]+>", text)
    said += re.findall(r'(?:title|aria-label|placeholder|alt|data-label)="([^"]*)"', text)
    said += re.findall(r'<input type="submit" value="([^"]*)"', text)
    found = {" ".join(html.unescape(each).split()) for each in said} - {""}
    return {each for each in found if not ERRORS.search(each)}


@pytest.fixture
def german(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    settings.USE_I18N = True
    settings.LANGUAGE_CODE = "de"
    # Django decides only once, from the settings, whether to translate.
    monkeypatch.setattr(translation, "_trans", type(translation._trans)())
    with translation.override("de"):
        yield


def test_no_page_shows_an_english_label(client, db, german):
    client.force_login(scenes.superuser())
    scenes.play()
    patterns = list(english())
    german_too = {told.casefold() for _, each in entries() for told in each}
    left = set()

    for name, path in pages():
        for label in labels(client.get(path).content.decode()):
            if label.rstrip(":").casefold() in german_too:
                continue
            for shown in {label, label[:1].lower() + label[1:]}:
                if any(pattern.fullmatch(shown) for _, pattern in patterns):
                    left.add((name, label))

    assert len(patterns) > 300
    assert left == set()


def test_numbers_are_written_as_the_language_does(german):
    shown = [number(1234567, exact=False), decimal(0.25), lapse(5400), percent(0.05)]

    assert shown == ["≈\N{NO-BREAK SPACE}1.234.567", "0,25", "1,5 h", "5 %"]


def _plain(text: str) -> str:
    return text.replace('\\"', '"').replace("\\n", "\n")


def test_everything_is_translated():
    found = dict(entries())

    assert len(found) > 300
    assert [msgid for msgid, told in found.items() if not all(told)] == []


def test_every_text_of_a_models_field_is_in_the_catalogue():
    with translation.override("en"):
        texts = set(field_texts()) - {""}

    assert len(texts) > 100
    assert texts - dict(entries()).keys() == set()


def test_translations_keep_their_placeholders():
    for msgid, told in entries():
        for text in told:
            placeholders = re.compile(r"%\(\w+\)s|%%?s|\{\}")
            assert sorted(placeholders.findall(text)) == sorted(placeholders.findall(msgid)), msgid


def test_the_compiled_catalogue_is_the_one_in_words():
    with (CATALOGUE / "django.mo").open("rb") as file:
        compiled = gettext.GNUTranslations(file)

    for msgid, told in entries():
        if len(told) == 1:
            assert compiled.gettext(msgid) == told[0]
        else:
            assert [compiled.ngettext(msgid, "", number) for number in (1, 2)] == told


GERMAN_PROJECT = """
import tests.settings
tests.settings.LANGUAGE_CODE = "de"
import django
django.setup()
from django.apps import apps
from django.db.migrations.autodetector import MigrationAutodetector
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.state import ProjectState
from django.utils import translation
translation.deactivate_all()
loader = MigrationLoader(None)
detector = MigrationAutodetector(loader.project_state(), ProjectState.from_apps(apps))
changed = detector.changes(graph=loader.graph).get("django_pgqueue", [])
print([operation.describe() for migration in changed for operation in migration.operations])
"""


def test_a_german_project_needs_no_other_migration():
    command = [sys.executable, "-W", "ignore", "-c", GERMAN_PROJECT]
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}

    ended = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)

    assert (ended.stdout, ended.stderr) == ("[]\n", "")
