"""The admin in a real browser, under a strict Content-Security-Policy."""

from __future__ import annotations

import re
import threading
import time
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from django.db.models import F
from django.utils import translation
from django.utils.timezone import localtime

from django_pgqueue import queue
from django_pgqueue.admin.failures import WINDOWS, Failures
from django_pgqueue.handlers import Handler
from django_pgqueue.models import (
    ArchivedMessage,
    Attempt,
    BulkAction,
    Mark,
    Message,
    Process,
    Queue,
)
from tests.admin import scenes
from tests.admin.browsing import EVERY_RULE, RULES_OF_LOOKS, faults, sign_in
from tests.waiting import until
from tests.worker.consuming import InThread
from tests.worker.test_processes import url
from tests.working.running import Command
from tools.screenshots import WIDTHS, pages

pytestmark = [pytest.mark.browser, pytest.mark.slow]

OVERVIEW = "/admin/django_pgqueue/queue/"
PATIENCE = 30_000  # milliseconds


def wait_for(page: Any, text: str, patience: int = PATIENCE) -> None:
    """Wait for a text or a /pattern/; if it does not come, fail with the page's text."""
    from playwright.sync_api import TimeoutError as TooLate

    try:
        page.wait_for_selector(f"text={text}", timeout=patience)
    except TooLate:
        shown = page.inner_text("body")
        pytest.fail(f"{text!r} is not on {page.url}, which says {page.said} and shows:\n{shown}")


def test_every_page_fits_its_window_and_can_be_used_by_all(visit):
    """In light mode at each width, and in dark mode on a phone: nothing wider than the window,
    nothing in the console, no serious finding of axe.
    """
    scenes.play()
    page = visit()
    wrong = {}

    for name, path in pages():
        page.goto(path)
        rules = EVERY_RULE
        for width, scheme in [*((width, "light") for width in WIDTHS), (390, "dark")]:
            page.emulate_media(color_scheme=scheme)
            if found := faults(page, width, rules):
                wrong[name, width, scheme] = found
            rules = RULES_OF_LOOKS

    assert not wrong
    assert not page.said


def test_an_error_is_seen_in_the_list_without_scrolling(visit):
    scenes.play()
    page = visit()

    page.goto("/admin/django_pgqueue/message/?state=failed")

    cells = page.locator("td.field-error")
    assert cells.count() == ArchivedMessage.objects.filter(state="FAILED").count()
    for number in range(cells.count()):
        box = cells.nth(number).bounding_box()
        assert box["x"] + box["width"] <= 1280
        assert re.search("CardDeclined|OSError", cells.nth(number).inner_text())


def test_a_traceback_is_two_clicks_away_and_redriving_its_group_three(visit):
    scenes.play()
    page = visit()
    page.goto(OVERVIEW)

    row = page.locator("table.overview tr", has_text="mails")
    row.locator("td.bad-text a").click()
    failures = page.url
    page.click("table.failures th a")

    told = page.locator(".pgqueue-text").inner_text()
    assert "line 112, in charge" in told
    assert "\n  File" in told

    page.goto(failures)
    page.click("table.failures button[value=retry]")
    assert "Send 4 messages of mails again" in page.inner_text("#content-main")
    page.click(".delete-confirmation input[type=submit]")

    wait_for(page, "4 messages sent again.")
    assert queue("mails").metrics().ready >= 4
    assert not page.said


def test_why_a_message_is_not_delivered_is_one_click_from_the_list(visit):
    orders = queue("orders").create()
    Process.objects.create(host="web-1", pid=7, version="1", queues=["orders"])
    queue("orders").send(1, delay=600)
    page = visit()
    page.goto(f"/admin/django_pgqueue/message/?queue={orders.pk}")

    page.click("#result_list tbody th a")

    assert "Scheduled for" in page.inner_text("p.note")


def test_a_message_of_customer_7_is_two_clicks_from_the_overview(visit):
    """With words to type. The field suggests keys for each of them."""
    queue("orders").create()
    queue("orders").send_batch([{"customer": 8}, {"customer": 7}, {"customer": 9}])
    page = visit()
    page.goto(OVERVIEW)

    page.click(".pgqueue-nav >> text=Messages")
    page.locator("[name=q]").press_sequentially("4711 bo")
    suggested = "[...document.querySelectorAll('#pgqueue-words option')].map(each => each.value)"
    assert page.evaluate(suggested) == ["4711 body.customer:"]
    page.fill("[name=q]", "customer 7")
    page.press("[name=q]", "Enter")
    page.click("#result_list tbody th a")

    assert '"customer": 7' in page.inner_text("#content-main")
    assert not page.said


def test_buttons_with_longer_words_are_never_cut(visit, settings, monkeypatch):
    settings.USE_I18N, settings.LANGUAGE_CODE = True, "de"
    # Django decides only once, from the settings, whether to translate.
    monkeypatch.setattr(translation, "_trans", type(translation._trans)())
    scenes.play()
    page = visit()
    cut = {}

    for path in (OVERVIEW, "/admin/django_pgqueue/schedule/"):
        page.goto(path)
        assert "Anhalten" in page.inner_text("#content-main")
        for width in (1100, 1200, 1280, 1440):
            page.set_viewport_size({"width": width, "height": 900})
            if found := page.evaluate(BEYOND_PANEL):
                cut[path, width] = found

    assert cut == {}


#: Buttons that end outside their panel, which hides them.
BEYOND_PANEL = """() => [...document.querySelectorAll('.panel button')].filter(each =>
    each.getBoundingClientRect().right > each.closest('.panel').getBoundingClientRect().right
).map(each => each.innerText)"""


def test_all_messages_of_a_page_are_chosen_at_once(visit):
    queue("orders").create()
    queue("orders").send_batch(range(3))
    page = visit()
    page.goto("/admin/django_pgqueue/message/")

    page.check("[data-pgqueue-all]")
    page.select_option("select[name=action]", "cancel")
    page.click(".actions button")

    wait_for(page, "3 messages cancelled.")
    assert not page.said


def test_the_overview_says_without_a_reload_that_the_consumers_were_killed(visit, tmp_path):
    queue("lease").create()
    page = visit()
    with (
        Command(url(), "runconsumer", "lease", WORKING_HISTORY=tmp_path) as one,
        Command(url(), "runconsumer", "lease", WORKING_HISTORY=tmp_path) as other,
    ):
        until(lambda: Process.objects.count() == 2, 60)
        page.goto(OVERVIEW)
        page.evaluate("window.same = true")
        assert page.locator(".attention .bad").count() == 0

        one.kill()
        other.kill()
        queue("lease").send({"op": 1})

        wait_for(page, "No consumer")
    assert page.evaluate("window.same")
    assert not page.said


def test_the_overview_says_without_a_reload_that_a_tenth_of_the_attempts_fail(visit):
    def handle(message: Message) -> None:
        if message.body % 10 == 0:
            message.reject("card declined")

    queue("orders").create()
    page = visit()
    page.goto(OVERVIEW)
    page.evaluate("window.same = true")
    consumer = InThread(Handler("orders", handle))
    try:
        queue("orders").send_batch(range(400))

        wait_for(page, "40 of 400 attempts failed in the last ten minutes")
    finally:
        consumer.stop()
    assert page.evaluate("window.same")
    assert not page.said


def test_a_night_is_told_by_the_first_line_and_ended_in_six_clicks(visit, settings):
    """A deploy breaks payments, while eight other queues have no consumer."""
    settings.PGQUEUE = {"HISTORY_SECONDS": 0.5}
    broken = threading.Event()

    def handle(message: Message) -> None:
        if broken.is_set() or message.body == "odd":
            message.reject("card declined")

    for number in range(8):
        queue(f"q{number}").create()
        queue(f"q{number}").send(1)
    queue("payments").create()
    clicks = []

    def click(page: Any, place: str) -> None:
        clicks.append(place)
        page.click(place)

    consumer = InThread(Handler("payments", handle), heartbeat=0.5)
    try:
        queue("payments").send("odd")
        queue("payments").send_batch(range(300))
        until(lambda: not queue("payments").metrics().length)
        Attempt.objects.update(at=F("at") - timedelta(seconds=8))
        broken.set()
        Mark.objects.create(text="v42")
        for number in range(40):
            queue("payments").send(number)
            time.sleep(0.02)
        until(lambda: not queue("payments").metrics().length)
        page = visit()
        page.goto(OVERVIEW)

        wait_for(page, "41 of 341 attempts failed in the last ten minutes")
        first, second = page.locator(".panel > .attention tr, .cause > summary").all_inner_texts()
        _odd, onset, *_rest = Attempt.objects.order_by("at").values_list("at", flat=True)
        assert "Failing" in first
        assert "payments" in first
        assert f"since {localtime(onset):%H:%M:%S}, 0 s after v42" in " ".join(first.split())
        assert "8 queues without a consumer" in second

        click(page, "table.overview tr:has-text('payments') button")
        wait_for(page, "Paused payments")
        click(page, "table.overview tr:has-text('payments') td.bad-text a")
        click(page, "table.failures button[value=retry]")
        click(page, ".delete-confirmation input[type=submit]")
        wait_for(page, "41 messages sent again.")
        broken.clear()
        click(page, ".pgqueue-nav a:has-text('Queues')")
        click(page, "table.overview tr:has-text('payments') button")
        wait_for(page, "Resumed payments")
        assert len(clicks) == 6
        until(lambda: ArchivedMessage.objects.filter(state="COMPLETED").count() == 340)

        # Why another queue is late: one click.
        page.goto(OVERVIEW)
        page.click("table.overview a:has-text('q3')")
        wait_for(page, "No process consumes this queue.")
    finally:
        consumer.stop()
    assert not page.said


def test_a_queue_page_refreshes_but_while_a_table_is_open(visit):
    scenes.play()
    page = visit()
    page.goto(f"{OVERVIEW}{Queue.objects.get(name='payments').pk}/overview/")
    page.locator("figure summary").first.click()
    queue("payments").send_batch(range(5000))

    wait_for(page, "/updated ([7-9]|\\d\\d) s ago/")
    assert page.locator("text=5,011").count() == 0
    page.locator("figure summary").first.click()
    page.evaluate("document.activeElement.blur()")

    wait_for(page, "5,011")
    assert not page.said


def test_the_overview_stays_as_it_is_while_it_is_stopped(visit):
    queue("orders").create()
    page = visit()
    page.goto(OVERVIEW)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))

    page.click("[data-pgqueue-stop]")
    wait_for(page, "/stopped, updated ([6-9]|\\d\\d) s ago/")
    assert not asked
    queue("orders").send(1)
    page.click("[data-pgqueue-stop]")

    wait_for(page, "No consumer")
    assert asked


@pytest.mark.parametrize("busy", ["typing", "selecting"])
def test_the_overview_waits_for_who_types_or_selects(visit, busy):
    queue("orders").create()
    page = visit()
    page.goto(OVERVIEW)
    if busy == "typing":
        page.focus("#pgqueue-q")
    else:
        page.evaluate(
            "document.getSelection().selectAllChildren(document.querySelector('#pgqueue-live'))"
        )
    queue("orders").send(1)

    wait_for(page, "/updated ([7-9]|\\d\\d) s ago/")
    assert page.locator(".attention .bad").count() == 0
    page.evaluate("document.activeElement.blur(); document.getSelection().removeAllRanges()")

    wait_for(page, "No consumer")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("sidebar", ["open", "closed"])
def test_numbers_and_pauses_of_the_overview_are_never_cut(visit, width, sidebar):
    """A queue of the scene has a name of 63 characters."""
    scenes.play()
    page = visit(width)
    page.goto(OVERVIEW)
    toggle = page.locator("#toggle-nav-sidebar")
    if sidebar == "closed" and toggle.is_visible():
        toggle.click()
    page.click("#pgqueue-idle summary")
    page.evaluate("Promise.all(document.getAnimations().map(each => each.finished))")

    ends = [box["x"] + box["width"] for box in boxes(page, "table.overview :is(button, td)")]
    buttons = page.locator("table.overview :is(button, td.act a)").count()

    assert any(len(queue.name) == 63 for queue in Queue.objects.all())
    assert buttons == Queue.objects.count()
    assert max(ends) <= width
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CUT) == []


#: Numbers and buttons of the overview that are wider than their cells.
CUT = """() => [...document.querySelectorAll('table.overview td:is(.number, .act)')]
    .filter(each => each.scrollWidth > each.clientWidth + 1).map(each => each.innerText)"""


def test_the_first_queue_is_seen_without_scrolling(visit):
    for number in range(31):
        queue(f"late-{number}").create()
        queue(f"late-{number}").send(1)
    page = visit()
    page.goto(OVERVIEW)

    [row] = [boxes(page, "table.overview tbody tr")[0]]

    assert row["y"] + row["height"] <= 900
    assert page.locator(".cause:not([open]) > summary").count() == 1


def test_pages_work_without_a_script(chromium, site):
    queue("orders").create()
    [sent] = queue("orders").send_batch([1])
    context = chromium.new_context(java_script_enabled=False, base_url=site)
    page = context.new_page()
    sign_in(page, site)

    page.goto(OVERVIEW)
    page.click("table.overview button")
    assert Queue.objects.get().paused
    page.goto("/admin/django_pgqueue/message/")
    page.check(f"input[value='{sent}']")
    page.select_option("select[name=action]", "delete")
    page.click(".actions button")
    page.click(".delete-confirmation input[type=submit]")
    assert not Message.objects.exists()
    context.close()


def test_the_table_of_charts_shows_all_its_numbers(visit):
    scenes.play()
    page = visit()
    page.goto("/admin/django_pgqueue/rollup/charts/")

    ends = [box["x"] + box["width"] for box in boxes(page, ".panel.wide th[scope=col]")]

    assert len(ends) == 10  # without the two lines, which need a wider page
    assert max(ends) <= 1280


def test_text_of_charts_is_large_enough_on_a_phone(visit):
    scenes.play()
    page = visit(390)
    page.goto(f"{OVERVIEW}{Queue.objects.get(name='payments').pk}/overview/")

    heights = [box["height"] for box in boxes(page, "figure svg text")]

    assert heights
    assert min(heights) >= 11  # the line's height; letters are four fifths of it


def boxes(page: Any, selector: str) -> list[Any]:
    return [box for each in page.locator(selector).all() if (box := each.bounding_box())]


def test_a_queue_is_paused_by_its_button(visit):
    queue("orders").create()
    page = visit()
    page.goto(OVERVIEW)

    page.click("table.overview button")

    wait_for(page, "Paused orders")
    assert Queue.objects.get().paused


def test_what_senders_write_stays_text(visit):
    attack = "<script>document.title='taken'</script><img src=x onerror=alert(1)>"
    orders = queue("orders").create()
    [sent] = [queue("orders").send({attack: attack}, headers={attack: attack})]
    queue("orders").send(attack, group=attack, unique=attack)
    queue("orders").send_batch([1], group=attack)
    [message] = queue("orders").read()
    message.reject(attack)
    [group] = Failures([orders.pk], [], WINDOWS["1h"]).groups(1)
    page = visit()

    for path in (
        OVERVIEW,
        "/admin/django_pgqueue/message/",
        "/admin/django_pgqueue/message/?state=archived",
        f"/admin/django_pgqueue/message/{sent}/change/",
        f"/admin/django_pgqueue/message/{sent + 1}/change/",
        f"/admin/django_pgqueue/queue/{orders.pk}/send/?copy={sent}",
        f"/admin/django_pgqueue/queue/{orders.pk}/overview/",
        "/admin/django_pgqueue/message/failures/",
        f"/admin/django_pgqueue/message/failures/{group.kind}/",
        f"/admin/django_pgqueue/message/?state=ready&group={quote(attack)}",
        f"/admin/django_pgqueue/message/?q={quote(attack)}",
    ):
        page.goto(path)
        assert page.title() != "taken"

    assert not page.said


def test_a_large_redrive_shows_its_progress_stops_and_goes_on(visit):
    """A redrive of thousands of dead letters, started in the list and driven by the open page."""
    dead = Message.objects.create_queue("dead")
    Message.objects.create_queue("orders", dead_letter_queue=dead)
    count = 100_000
    source = {"x-dead-letter": {"source": "orders", "error": "no card"}}
    queue("dead").send_batch(list(range(count)), headers=source)
    page = visit()
    page.goto(f"/admin/django_pgqueue/message/?state=ready&queue={dead.pk}")

    page.select_option("select[name=action]", "redrive")
    page.check("[name=select_across]")
    page.click(".actions button")
    wait_for(page, f"Send {count:,} messages of dead back")
    page.click(".delete-confirmation input[type=submit]")
    page.click("text=Stop the bulk action")
    wait_for(page, "Stopped:")
    bulk_action = BulkAction.objects.get()
    stopped_at = bulk_action.done
    assert 0 < stopped_at < count
    assert queue("orders").metrics().length == stopped_at
    page.click("text=Resume the bulk action")

    wait_for(page, f"Done: {count:,} of {count:,} messages", 10 * PATIENCE)
    assert Message.objects.filter(queue__name="orders").count() == count
    assert not Message.objects.filter(queue=dead).exists()
    assert not page.said
