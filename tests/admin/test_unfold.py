"""The admin under django-unfold, a theme with templates of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.urls import reverse

from django_pgqueue.models import Queue
from tests.admin import scenes
from tests.admin.browsing import RULES_OF_LOOKS, faults
from tests.admin.conftest import page
from tools.screenshots import WIDTHS, pages

pytest.importorskip("unfold")

NAV = 'class="pgqueue-nav"'
#: One page of each kind.
LOOKED_AT = {
    "queues",
    "queue",
    "group",
    "messages",
    "message-dead",
    "failures",
    "bulk-action",
    "charts-queue",
}


#: Whether the last of a strip's figures ends where the strip does.
FILLED = """() => [...document.querySelectorAll(".strip.figures")].every(strip => {
    const right = of => of.getBoundingClientRect().right
    return right(strip) - right(strip.lastElementChild) < 3
})"""


@pytest.fixture(autouse=True)
def unfold() -> Iterator[None]:
    from tests.admin.unfold_site import installed

    with installed():
        yield


@pytest.fixture
def policy() -> str:
    return "tests.admin.csp.of_unfold"


def test_our_pages_lead_to_one_another_and_say_which_one_they_are(operator, orders):
    pk = Queue.objects.get(name="orders").pk

    of_queue = page(operator, "queue", "overview", pk)
    assert NAV in of_queue
    assert "<h1>orders</h1>" in of_queue
    assert f'href="{reverse("admin:django_pgqueue_queue_purge", args=[pk])}"' in of_queue
    assert NAV in page(operator, "queue", "change", pk)
    assert NAV in page(operator, "message", "failures")
    assert NAV in page(operator, "bulkaction")


def test_a_queue_is_dropped_by_its_name(operator, orders):
    queue = Queue.objects.get(name="orders")

    asked = page(operator, "queue", "delete", queue.pk)
    assert 'name="typed"' in asked
    operator.post(
        reverse("admin:django_pgqueue_queue_delete", args=[queue.pk]),
        {"post": "yes", "typed": "orders"},
    )

    assert not Queue.objects.filter(name="orders").exists()


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_our_content_fits_its_window_and_has_contrast(visit, scheme):
    """On desktop and phone. The theme's own parts of a page are not checked."""
    from tests.admin.unfold_site import DRAWN, OURS

    scenes.play()
    shown = visit(scheme=scheme)
    wrong = {}

    for name, path in pages():
        if name not in LOOKED_AT:
            continue
        shown.goto(path)
        shown.wait_for_selector(DRAWN[scheme])
        for width in WIDTHS:
            if found := faults(shown, width, RULES_OF_LOOKS, OURS):
                wrong[name, width] = found
            if not shown.evaluate(FILLED):
                wrong[name, width] = [("figures", "leave a part of the strip empty")]

    assert not wrong
    assert not shown.said
