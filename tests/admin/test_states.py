"""The admin knows every terminal state."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from django_pgqueue.admin.places import Place
from django_pgqueue.models import ArchivedMessage
from django_pgqueue.types import ENDS
from tests.admin.conftest import ids, page, shown

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("state", ENDS)
def test_each_terminal_state_is_found_and_shown_with_its_words_and_colour(operator, orders, state):
    pk, other = orders.send(1), orders.send(2)
    orders.archive([pk, other])
    ArchivedMessage.objects.filter(pk=pk).update(state=state)
    ArchivedMessage.objects.filter(pk=other).update(
        state=next(each for each in ENDS if each is not state)
    )

    found = shown(operator, pk)

    assert ids(operator, state=state.counter) == [pk]
    assert found.state == state.label
    assert state.end.words in found.life
    chip = '<span class="chip bad">' if state.is_failure else '<span class="chip ">'
    assert f"{chip}{state.label}<" in page(operator, "message", "change", pk)


def test_an_outcome_that_only_another_version_knows_is_shown_as_it_is(operator, orders):
    pk = orders.send(1)
    orders.archive(pk)
    ArchivedMessage.objects.filter(pk=pk).update(state="LOST")

    found = shown(operator, pk)

    assert found.state == "LOST"
    assert "LOST" in found.life
    assert ids(operator, q=str(pk)) == [pk]
    assert '<span class="chip ">LOST<' in page(operator, "message", "change", pk)


def test_each_colour_is_in_the_style_sheet():
    css = files("django_pgqueue").joinpath("static/django_pgqueue/admin.css").read_text()

    for look in {place.look for place in Place} - {""}:
        assert re.search(rf"\.chip(:is\([^)]*)?\.{look}\b", css)
        assert f".pgqueue-timeline li.{look}" in css
