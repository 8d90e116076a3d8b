"""The German catalogue is whole."""

from __future__ import annotations

import gettext
import re
from collections.abc import Iterator
from pathlib import Path

import django_pgqueue

CATALOGUE = Path(django_pgqueue.__file__).parent / "locale/de/LC_MESSAGES"


def entries() -> Iterator[tuple[str, list[str]]]:
    """Each message of the .po file, and its translations."""
    for block in (CATALOGUE / "django.po").read_text().split("\n\n")[1:]:
        parts = re.findall(r'^(msg\w+)(?:\[\d\])? "(.*)"$', block, re.MULTILINE)
        told = [_plain(text) for kind, text in parts if kind == "msgstr"]
        yield _plain(dict(parts)["msgid"]), told


def _plain(text: str) -> str:
    return text.replace('\\"', '"').replace("\\n", "\n")


def test_everything_is_translated() -> None:
    found = dict(entries())

    assert len(found) > 300
    assert [msgid for msgid, told in found.items() if not all(told)] == []


def test_translations_keep_their_placeholders() -> None:
    for msgid, told in entries():
        for text in told:
            placeholders = re.compile(r"%\(\w+\)s|%%?s|\{\}")
            assert sorted(placeholders.findall(text)) == sorted(placeholders.findall(msgid)), msgid


def test_the_compiled_catalogue_is_the_one_in_words() -> None:
    with (CATALOGUE / "django.mo").open("rb") as file:
        compiled = gettext.GNUTranslations(file)

    for msgid, told in entries():
        if len(told) == 1:
            assert compiled.gettext(msgid) == told[0]
        else:
            assert [compiled.ngettext(msgid, "", number) for number in (1, 2)] == told
