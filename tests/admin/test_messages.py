"""The messages' page: each message's state and place, and settling by hand."""

from __future__ import annotations

import html
import json
import os
import re
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.dateparse import parse_datetime

from django_pgqueue import queue
from django_pgqueue.admin import messages, messages_page, search, suggestions
from django_pgqueue.models import ArchivedMessage, AuditEntry, BoundQueue, Message, Queue
from django_pgqueue.templatetags.pgqueue_admin import when
from tests.admin.conftest import act, confirm, ids, overview, page, plain, rows, shown

LIST = "/admin/django_pgqueue/message/"


def pages_of(client: Client, **query: Any) -> list[list[str]]:
    """The ids on each page of a list, in order."""
    found = []
    url = reverse("admin:django_pgqueue_message_changelist", query=query)
    while url:
        text = client.get(url).content.decode()
        found.append(re.findall(r'class="field-id"[^>]*><a [^>]+>(\d+)<', text))
        following = re.search(r'<a href="([^"]+)">Next page<', text)
        url = LIST + html.unescape(following[1]) if following else ""
    return found


@pytest.fixture
def one_in_each_state(orders: BoundQueue) -> dict[str, int]:
    """Create a message in each place; returns the ids by place."""
    ids = {
        state: orders.send({"will be": state})
        for state in ("completed", "failed", "delayed", "in flight", "due")
    }
    completed, failed, retryable, _, due = orders.read(qty=5)
    orders.set_vt(due, 0)
    orders.archive(completed)
    failed.reject("no")
    retryable.nack(60)
    ids["ready"] = orders.send({"will be": "ready"})
    orders.send_batch([{"in": "a group"}] * 2, group="g")
    ids["waiting"] = max(Message.objects.values_list("pk", flat=True))
    return ids


def test_list_shows_where_each_message_stands(operator, one_in_each_state):
    listed = {int(row["id"]): row for row in rows(operator, "message")}

    for place, pk in one_in_each_state.items():
        assert listed[pk]["state"] == place
    held = listed[one_in_each_state["in flight"]]
    assert (held["queue"], held["deliveries"]) == ("orders", "1")
    assert listed[one_in_each_state["ready"]]["body"] == '{"will be": "ready"}'
    assert listed[one_in_each_state["waiting"]]["group"] == "g"


def test_list_is_newest_first(operator, orders):
    sent = orders.send_batch([1, 2, 3])

    assert ids(operator) == sent[::-1]
    assert ids(operator, o="oldest") == sent


@pytest.mark.parametrize("place", ["due", "waiting", "in_flight", "delayed", "completed", "failed"])
def test_state_filter_finds_the_messages_in_it(operator, one_in_each_state, place):
    queue("mails").create()
    queue("mails").send(1)
    orders = Queue.objects.get(name="orders").pk

    of_all = ids(operator, state=place)
    of_orders = ids(operator, state=place, queue=orders)

    assert of_orders == of_all == [one_in_each_state[place.replace("_", " ")]]


@pytest.mark.parametrize("given", ["nowhere", "-1", "9" * 30, "٣"])
def test_a_queue_that_cannot_be_has_no_messages(operator, one_in_each_state, given):
    assert ids(operator, queue=given) == []
    assert ids(operator, queue=given, state="ready") == []


def test_state_filter_knows_unlogged_queues(operator, orders):
    queue("fast").create(unlogged=True)
    fresh, delayed = queue("fast").send(1), queue("fast").send(2, delay=60)

    assert ids(operator, state="ready") == [fresh]
    assert ids(operator, state="delayed") == [delayed]


def test_ready_messages_are_listed_in_the_order_in_which_they_are_read(operator, orders):
    sent = orders.send_batch(list(range(60)))
    urgent = orders.send("now", priority=5)
    chosen = {"state": "ready", "queue": Queue.objects.get().pk}

    first, second = pages_of(operator, **chosen)

    assert [int(pk) for pk in first + second] == [urgent, *sent]


def test_ready_messages_are_found_by_their_index(operator, orders, sql):
    orders.send_batch(list(range(5000)))
    queue("mails").create()
    sql("ANALYZE pgqueue_ready")
    with CaptureQueriesContext(connection) as asked:
        rows(operator, "message", state="ready", queue=Queue.objects.get(name="orders").pk)
    found, counted = [q["sql"] for q in asked if "FROM pgqueue_ready" in q["sql"]][:2]

    plan = "\n".join(line for each in (found, counted) for (line,) in sql("EXPLAIN " + each))

    assert "pgqueue_ready_key" in plan
    assert not re.search(r"Seq Scan on pgqueue_ready\b(?!_)", plan)


def test_search_within_a_state_finds_only_what_is_asked_for(operator, orders):
    first, _ = orders.send_batch([1, 2])

    assert ids(operator, state="ready", q=first) == [first]


def test_a_number_of_messages_equals_the_list_behind_its_link(operator, orders):
    """Includes groups without a head, and expired leases."""
    orders.send_batch([1] * 50)
    for message in orders.read(qty=50):
        orders.set_vt(message, 0)
    orders.send_batch([2] * 7)
    orders.read(qty=3, vt=60)
    orders.send_batch([3] * 40, group="g")
    orders.send_batch([3] * 5, group="h", delay=60)
    orders.send_batch([4] * 6, delay=60)

    text = page(operator, "queue", "overview", Queue.objects.get().pk)
    links = re.findall(r'<a href="([^"]+)">([\d,]+)</a></dd><dt class="label">([\w ]+)<', text)
    listed = {}
    for link, number, name in links:
        response = operator.get(html.unescape(link), follow=True)
        listed[name] = response.context["number"]
        assert listed[name] == int(number), name
    assert sum(listed.values()) == orders.metrics().length
    assert overview(operator)["orders"]["Backlog"] == str(orders.metrics().length)
    assert set(listed) == {"ready", "due", "waiting", "in flight", "delayed"}
    assert all(listed.values())


def test_search_finds_ids(operator, orders):
    first, second, _ = orders.send_batch([1, 2, 3])

    assert ids(operator, q=first) == [first]
    assert ids(operator, q=f"{first}, {second}") == [second, first]


@pytest.mark.parametrize("words", ["seven", "-1", "9" * 30, "٣", "1.5"])
def test_search_for_what_is_no_id_finds_nothing(operator, orders, words):
    orders.send(1)

    assert ids(operator, q=words) == []


def test_a_page_costs_the_same_for_one_message_and_for_fifty(operator, orders):
    orders.send(1)
    with CaptureQueriesContext(connection) as one:
        page(operator, "message")
    orders.send_batch(list(range(49)))

    with CaptureQueriesContext(connection) as fifty:
        assert len(rows(operator, "message")) == 50

    assert len(fifty) == len(one)


def test_message_is_shown_with_its_body_escaped(operator, failed):
    text = page(operator, "message", "change", failed)

    assert "&quot;total&quot;: &quot;&lt;b&gt;7&lt;/b&gt;&quot;" in text
    assert "&quot;trace&quot;: &quot;abc&quot;" in text
    assert "card &lt;expired&gt;" in text
    assert "<b>7</b>" not in text


def test_preview_is_escaped_and_cut(operator, orders):
    orders.send("<script>" + "x" * 200)

    text = page(operator, "message")

    assert "<script>x" not in text
    assert rows(operator, "message")[0]["body"] == '"<script>' + "x" * 71 + "…"


def test_message_cannot_be_added_changed_or_deleted(operator, orders):
    message_id = orders.send(1)
    change = reverse("admin:django_pgqueue_message_change", args=[message_id])

    assert operator.get(reverse("admin:django_pgqueue_message_add")).status_code == 403
    assert operator.post(change, {"priority": 5}).status_code == 403
    assert operator.post(change.replace("change", "delete")).status_code == 403
    assert Message.objects.get().priority == 0


def test_links_to_a_message_name_its_queue_and_its_page_asks_no_other_table(operator, orders):
    message_id = orders.send(1)
    change = reverse("admin:django_pgqueue_message_change", args=[message_id])
    pk = Queue.objects.get(name="orders").pk
    named = f"{change}?queue={pk}"

    listed = page(operator, "message")
    with CaptureQueriesContext(connection) as asked:
        shown = operator.get(named)

    assert f'href="{named}"' in listed
    assert shown.status_code == 200
    of_messages = [each["sql"] for each in asked if 'FROM "pgqueue_message"' in each["sql"]]
    assert of_messages
    assert [sql for sql in of_messages if f'"queue_id" = {pk}' not in sql] == []


@pytest.mark.parametrize("named", ["other", "", "abc", "9" * 30, "9" * 5000])
def test_message_is_found_where_the_address_does_not_name_its_queue(operator, orders, named):
    message_id = orders.send(1)
    other = Message.objects.create_queue("other").pk
    change = reverse("admin:django_pgqueue_message_change", args=[message_id])
    query = {"queue": other if named == "other" else named}

    assert operator.get(change, query).status_code == 200


def test_unknown_message_leads_back_to_the_index(operator, orders):
    pk = Queue.objects.get(name="orders").pk

    for unknown in ("12345", "abc", "9" * 30):
        url = reverse("admin:django_pgqueue_message_change", args=[unknown])
        assert operator.get(url).status_code == 302
        assert operator.get(url, {"queue": pk}).status_code == 302


def test_chosen_messages_are_cancelled_in_their_queues(operator, orders):
    queue("mails").create()
    sent = [orders.send(1), orders.send(2), queue("mails").send(3), orders.send(4)]

    text = act(operator, "message", "cancel", *sent[:3])

    assert "3 messages cancelled." in text
    assert set(ArchivedMessage.objects.values_list("pk", flat=True)) == set(sent[:3])
    entries = AuditEntry.objects.filter(operation="cancel", who="ann").order_by("queue_name")
    assert [(each.queue_name, each.arguments["ids"]) for each in entries] == [
        ("mails", sent[2:3]),
        ("orders", sent[:2]),
    ]


def test_messages_in_flight_and_delayed_are_made_readable(operator, orders):
    in_flight = orders.send(1)
    orders.read()
    delayed = orders.send(2, delay=60)

    first = act(operator, "message", "readable", in_flight, delayed)
    second = act(operator, "message", "readable", in_flight, **{"with-in_flight": "on"})

    assert "1 message made readable." in first
    assert "1 message skipped" in first
    assert "1 message made readable." in second
    assert {message.id for message in orders.read(qty=5)} == {in_flight, delayed}


def test_what_has_left_the_queue_is_left_alone(operator, failed):
    text = act(operator, "message", "cancel", failed)

    assert "1 message skipped" in text
    assert ArchivedMessage.objects.get().state == "FAILED"


def test_deleting_asks_first(operator, orders):
    first, second = orders.send_batch([1, 2])

    asked = act(operator, "message", "delete", first)
    assert Message.objects.count() == 2
    done = confirm(operator, LIST, asked)

    assert "Delete 1 message of orders for good" in asked
    assert "1 message deleted." in done
    assert Message.objects.get().pk == second


@pytest.mark.parametrize(
    "lookup",
    [{"body__icontains": "x"}, {"headers__x": "1"}, {"group_key": "g"}, {"queue__name": "orders"}],
)
def test_look_ups_that_no_filter_offers_are_refused(operator, orders, lookup):
    assert operator.get(LIST, lookup).status_code == 400


def test_lists_offer_no_counts_beside_their_filters(operator, orders):
    orders.send(1)

    with CaptureQueriesContext(connection) as asked:
        text = page(operator, "message")

    assert "Show counts" not in text
    assert not [q for q in asked if "COUNT(CASE" in q["sql"].upper()]


def test_large_bodies_are_not_read_for_a_list(operator, orders):
    orders.send(os.urandom(40_000).hex())

    with CaptureQueriesContext(connection) as asked:
        [row] = rows(operator, "message")

    assert re.fullmatch(r"\d+\.\d KB in the database", row["body"])
    assert [q for q in asked if "pg_column_size" in q["sql"]]


def test_a_very_large_body_is_shown_by_its_beginning(operator, orders):
    pk = orders.send("x" * 300_000)

    text = page(operator, "message", "change", pk)

    assert "… and 200,002 characters more" in text
    assert len(text) < 150_000


def test_dead_letter_shows_why_it_died(operator, orders, dead_letters):
    pk = orders.send(1)
    [message] = orders.read()
    message.reject("ValueError: no such card\n  File <one>, line 7\n  File two, line 8")

    text = page(operator, "message", "change", pk)

    error = text.partition("pgqueue-timeline")[2].partition("</pre>")[0]
    assert "no such card\n  File &lt;one&gt;, line 7\n  File two, line 8" in error


def test_a_list_says_what_dead_letters_are_since_when_and_why(operator, orders, dead_letters, sql):
    pk = orders.send(1)
    for table in ("message", "ready"):
        sql(f"UPDATE pgqueue_{table} SET enqueued_at = enqueued_at - interval '90 min'")
    [message] = orders.read()
    orders_sent_at = message.enqueued_at
    message.reject("Traceback (most recent call last):\n  File x\nKeyError: 7")
    sent_to_it = dead_letters.send(2)

    of_dead = {"queue": Queue.objects.get(name="dead").pk}
    mixed = {int(row["id"]): row for row in rows(operator, "message", **of_dead)}
    heads = plain(page(operator, "message", **of_dead))
    dead_letters.cancel(sent_to_it)
    [dead] = rows(operator, "message", **of_dead, state="ready")
    of_dead_only = plain(page(operator, "message", **of_dead, state="ready"))

    header = Message.objects.get(pk=pk).headers["x-dead-letter"]
    assert (mixed[pk]["state"], mixed[sent_to_it]["state"]) == ("dead letter", "ready")
    assert (dead["state"], dead["deliveries"], dead["error"]) == ("dead letter", "1", "KeyError: 7")
    assert dead["turn"] == plain(when(parse_datetime(header["dead_lettered_at"])))
    assert dead["sent"] == plain(when(orders_sent_at))
    assert "Readable or ended" in heads
    assert "Dead letter since" not in heads
    assert "Dead letter since" in of_dead_only


@pytest.mark.parametrize("told", ["text", {"error": 7}, {"error": None}, [], None])
def test_headers_that_only_look_like_a_dead_letters_are_shown(operator, orders, told):
    pk = orders.send(1, headers={"x-dead-letter": told})

    assert "x-dead-letter" in page(operator, "message", "change", pk)


def test_times_have_seconds_and_are_never_none(operator, failed):
    text = page(operator, "message", "change", failed)
    sent = Message.objects.get().enqueued_at

    assert f"{sent:%Y-%m-%d %H:%M:%S}" in text
    assert ">None<" not in text


def test_control_and_direction_characters_are_codes(operator, orders):
    pk = orders.send({"file": "invoice\u202efdp.exe", "bell": "\x07"}, group="\u2066g")

    text = page(operator, "message", "change", pk) + page(operator, "message")

    assert "invoice\\u202efdp.exe" in text
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x07]", text)


@pytest.mark.parametrize(
    ("permissions", "actions"),
    [
        (["view_message"], set()),
        (["view_message", "settle_message"], {"cancel", "readable"}),
        (["view_message", "redrive_message"], {"redrive"}),
        (["view_message", "delete_message"], {"delete", "discard"}),
        (["view_message", "replay_archivedmessage"], {"replay"}),
    ],
)
def test_actions_need_their_permission(staff, orders, permissions, actions):
    message_id = orders.send(1)
    client = staff(*permissions)

    text = page(client, "message")
    url = reverse("admin:django_pgqueue_message_changelist")
    answer = {"action": "delete", "_selected_action": message_id}
    asked = client.post(url, answer)
    if asked.status_code == 200:
        confirm(client, url, asked.content.decode())
    assert asked.status_code == (200 if "delete" in actions else 403)

    every = {"cancel", "readable", "redrive", "delete", "discard", "replay"}
    assert {action for action in every if f'value="{action}"' in text} == actions
    assert Message.objects.exists() == ("delete" not in actions)


def test_times_are_in_the_time_zone_of_the_site(operator, orders, settings):
    settings.TIME_ZONE = "Asia/Tokyo"
    pk = orders.send(1)
    sent = Message.objects.get(pk=pk).enqueued_at.astimezone(ZoneInfo("Asia/Tokyo"))

    for text in (page(operator, "message"), page(operator, "message", "change", pk)):
        assert f'title="{sent:%Y-%m-%d %H:%M:%S}">{sent:%H:%M:%S}</time>' in text


def test_an_archived_message_is_shown_also_where_django_uses_no_time_zones(
    operator, failed, settings
):
    settings.USE_TZ = False

    assert "Failed for good" in shown(operator, failed).life


@pytest.mark.parametrize("place", ["ready", "due", "waiting", "in_flight", "delayed"])
def test_pages_go_on_where_the_one_before_ended(operator, orders, place, monkeypatch):
    """Across several queues, batches and groups: each message appears once."""
    monkeypatch.setattr(messages.MessageAdmin, "list_per_page", 7)
    expected = []
    for name in ("mails", "orders"):
        bound = queue(name)
        bound.create()
        group = "g" if place == "waiting" else None
        delay = 60 if place == "delayed" else 0
        ids = bound.send_batch(list(range(25)), group=group, delay=delay)
        if place in ("due", "in_flight"):
            alone = bound.read(qty=5, vt=60)
            bound.read(qty=20, vt=60 if place == "in_flight" else 0)
            for message in alone if place == "due" else []:
                bound.set_vt(message, 0)
        expected += ids[1:] if place == "waiting" else ids

    found = [int(pk) for each in pages_of(operator, state=place) for pk in each]

    assert len(found) == len(set(found))
    assert set(found) >= set(expected)


def test_pages_of_all_and_of_archived_messages_go_on(operator, orders, monkeypatch):
    monkeypatch.setattr(messages.MessageAdmin, "list_per_page", 4)
    sent = [str(pk) for pk in orders.send_batch(list(range(10)))]
    orders.archive([int(pk) for pk in sent])

    for state in ("", "archived", "completed"):
        listed = [pk for each in pages_of(operator, state=state) for pk in each]
        assert listed == sent[::-1]


def test_a_list_counts_no_further_than_its_cap(operator, orders, monkeypatch):
    orders.send_batch(list(range(120)))
    monkeypatch.setattr(messages_page, "CAP", 70)

    assert "70+ messages" in page(operator, "message")
    assert "70+ messages" in page(operator, "message", state="ready")


def test_filters_narrow_the_list(operator, orders, sql):
    plain = orders.send({"n": 1})
    head, tail = orders.send_batch([2, 3], group="customer 7")
    for table in ("pgqueue_ready", "pgqueue_message"):
        sql(f"UPDATE {table} SET enqueued_at = enqueued_at - interval '1 h' WHERE id = {plain}")

    assert ids(operator, group="customer 7") == [tail, head]
    assert ids(operator, group="customer 7", state="waiting") == [tail]
    for state in ("", "ready"):
        assert ids(operator, older="30min", state=state) == [plain]
        assert plain not in ids(operator, newer="30min", state=state)
    assert ids(operator, older="30") == []
    assert "Add the unit" in page(operator, "message", older="30")


def test_attempts_narrow_a_state(operator, orders):
    _, second = orders.send_batch([1, 2])
    for message in orders.read(qty=2, vt=0):
        if message.id == second:
            message.nack(60)
    orders.send(3, delay=60)

    assert ids(operator, state="delayed", attempts="1") == [second]
    assert ids(operator, state="delayed", attempts="x") == []


@pytest.mark.parametrize("state", ["", "ready", "archived"])
@pytest.mark.parametrize(
    ("words", "finds"),
    [
        ("body.customer:7", [0]),
        ("body.customer:bob", [1]),
        ("body.customer.name:ann", [2]),
        ("headers.trace:abc", [1]),
        ("body.customer:7 headers.trace:abc", []),
        ("body.customer:x'%s", []),
        ("body.customer:", [0, 1, 2]),
        ("headers.trace:", [1]),
        ("customer:7", [0]),
        ("name:ann", [2]),
        ("customer.name:ann", [2]),
        ("customer 7", [0]),
        ("customer bob", [1]),
        ("BOB", [1]),
        ('"ann"', [2]),
        ("headers.trace:abc bob", [1]),
        ("customer 8", []),
        ("customer:null", []),
        ("%", []),
        ("seven", []),
        ("http://7", []),
    ],
)
def test_search_looks_into_bodies_and_headers(operator, orders, words, finds, state):
    sent = [
        orders.send({"customer": 7}),
        orders.send({"customer": "bob"}, headers={"trace": "abc"}),
        orders.send({"customer": {"name": "ann"}}),
    ]
    if state == "archived":
        orders.archive(sent)

    assert sorted(ids(operator, q=words, state=state)) == [sent[place] for place in finds]


def test_a_search_finds_errors_wherever_they_are(operator, orders, failed, dead_letters):
    died, waits, _other = orders.send_batch([1, 2, 3])
    dying, waiting, _held = orders.read(qty=3)
    dying.reject("CardDeclined: no card")
    orders.retry({waiting.receipt: 60}, errors={waiting.receipt: "CardDeclined: 100%"})

    assert ids(operator, q="error:declined") == [waits, died]
    assert (
        ids(operator, q="error:expired") == ids(operator, q="error:EXP", state="failed") == [failed]
    )
    assert ids(operator, q="error:%") == [waits]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("4711", "Finds messages where the id is 4711."),
        (
            "customer 7",
            "Finds messages where “customer” is “7” anywhere in the body, or it contains "
            "“customer 7”.",
        ),
        ("bob", "Finds messages where the body contains “bob”."),
        ("customer:7", "Finds messages where “customer” is “7” anywhere in the body."),
        ("body.customer:", "Finds messages where “body.customer” exists."),
        (
            "headers.trace:abc error:Declined",
            "Finds messages where headers.trace is “abc”; the error contains “Declined”.",
        ),
    ],
)
def test_what_a_search_means_is_said_back(operator, orders, words, said):
    assert said in plain(page(operator, "message", q=words))


def test_the_search_suggests_what_recent_messages_have(operator, orders, failed, monkeypatch):
    orders.send({"old": 1})
    orders.send({"customer": {"name": "ann"}, "password": "x"}, headers={"trace": "b"}, group="c 7")
    orders.send({"task": "shop.tasks.mail", "args": [], "kwargs": {}})
    orders.send({"two words": 1, "large": os.urandom(40_000).hex()})
    queue("mails").create()
    queue("mails").send({"to": 1}, group="<g>")
    monkeypatch.setattr(suggestions, "NEWEST", 4)

    text = page(operator, "message")
    own = page(operator, "message", queue=Queue.objects.get(name="mails").pk)

    assert set(options(text, "words")) == {
        *("body.customer:", "body.customer.name:", "body.password:", "headers.trace:"),
        *("body.task:", "body.args:", "body.kwargs:", "body.task:shop.tasks.mail", "body.to:"),
        "error:card",
    }
    assert options(text, "groups") == ["<g>", "c 7"]
    assert (options(own, "words"), options(own, "groups")) == (["body.to:"], ["<g>"])
    assert "Suggestions come from the newest" in text


def options(text: str, field: str) -> list[str]:
    """The suggestions of a field."""
    found = text.partition(f'<datalist id="pgqueue-{field}">')[2].partition("</datalist>")[0]
    return [html.unescape(each) for each in re.findall(r'value="([^"]*)"', found)]


def test_an_action_on_a_search_takes_what_the_search_finds(operator, orders):
    sent = orders.send_batch([{"customer": 7}, {"customer": 8}, {"customer": 7}])

    url = f"{LIST}?q=customer+7&state=ready"
    asked = operator.post(url, {"action": "cancel", "select_across": "1"}).content.decode()
    confirm(operator, url, asked)

    assert "Cancel 2 messages" in asked
    assert {each.pk for each in ArchivedMessage.objects.all()} == {sent[0], sent[2]}


@pytest.mark.parametrize("state", ["", "archived"])
def test_a_search_says_how_far_it_came_and_goes_on(operator, orders, monkeypatch, state):
    monkeypatch.setattr(search, "LOOK", 20)
    wanted = orders.send({"n": 1})
    others = orders.send_batch([{"n": 2}] * 48)
    if state:
        orders.archive([wanted, *others])
    url, said, found = f"{LIST}?q=body.n:1&state={state}", [], []
    while url:
        text = operator.get(url).content.decode()
        found += re.findall(r'class="field-id"[^>]*><a [^>]+>(\d+)<', text)
        said += re.findall(r"Searched the newest (\d+) of ≈\s\d+ messages", text)
        following = re.search(r'<a href="([^"]+)">Go on<', text)
        url = LIST + html.unescape(following[1]) if following else ""

    assert said == ["20", "40"]
    assert found == [str(wanted)]


@pytest.mark.parametrize("state", ["", "ready"])
def test_a_count_that_stopped_early_is_marked(operator, orders, monkeypatch, state):
    """Where the messages found fill the page, and where they do not."""
    monkeypatch.setattr(search, "LOOK", 60)
    orders.send_batch([{"n": 1}] * 70)
    orders.send_batch([{"n": 2}] * 2 + [{"n": 3}] * 58)

    many = page(operator, "message", q="body.n:1", state=state, o="oldest")
    following = page(operator, "message", q="body.n:1", state=state, o="oldest", after="0:1:")
    few = page(operator, "message", q="body.n:2", state=state)
    all_of_them = page(operator, "message", q="body.n:3", state=state, older="0.000001s")
    monkeypatch.setattr(search, "LOOK", 200)
    exact = page(operator, "message", q="body.n:1", state=state)

    assert "60+ messages" in many
    assert "Searched the first 60 messages." in many
    assert "Next page" in many
    assert "Go on" not in many
    assert "Searched the next 60 messages." in following
    assert ("0+ messages" if state else "2+ messages") in few
    assert "Go on" in few
    assert ("0+ messages" if state else "58+ messages") in all_of_them
    assert "70 messages" in exact
    assert "Searched" not in exact


def test_a_count_of_a_place_that_stopped_early_is_marked(operator, orders, monkeypatch):
    monkeypatch.setattr(search, "SCAN", 80)
    monkeypatch.setattr(messages_page, "CAP", 79)
    orders.send_batch(list(range(100)))
    for message in orders.read(qty=60, vt=60):
        orders.set_vt(message, 3600)
    orders.retry({message.receipt: 1800 for message in orders.read(qty=40)})

    assert "40+ messages" in page(operator, "message", state="in_flight")


def test_searches_do_not_read_all_messages(operator, orders, sql):
    orders.send_batch([{"n": number} for number in range(3000)])
    sql("ANALYZE")
    with CaptureQueriesContext(connection) as asked:
        for query in ({"q": "body.n:7"}, {"q": "body.n:7", "state": "ready"}, {"group": "g"}):
            page(operator, "message", **query)
    looked = [q["sql"] for q in asked if "matches" in q["sql"] and "newest" not in q["sql"]]

    plans = "\n".join(line for each in looked for (line,) in sql("EXPLAIN " + each))
    of_all = "\n".join(line for (line,) in sql("EXPLAIN " + looked[0]))

    assert len(looked) == 3
    assert of_all.count("Scan") - of_all.count("Subquery Scan") == 1  # no look-up for each message
    of_fields = next(q["sql"] for q in asked if "newest" in q["sql"])
    plans += "\n".join(line for (line,) in sql("EXPLAIN " + of_fields))
    assert "Seq Scan on pgqueue_message" not in plans
    assert "Hash Semi Join" not in plans


def test_a_list_is_exported_as_json_lines(operator, orders, failed, monkeypatch):
    sent = orders.send_batch([{"n": 1, "password": "hunter2"}, {"n": 2}])
    large = orders.send(os.urandom(200_000).hex())
    url = reverse("admin:django_pgqueue_message_changelist")

    response = operator.get(url, {"export": "jsonl"})
    told = [json.loads(line) for line in b"".join(response.streaming_content).splitlines()]
    monkeypatch.setattr(messages_page, "MOST_EXPORTED", 1)
    capped = operator.get(url, {"export": "jsonl"})

    assert [row["id"] for row in told] == [large, *sent[::-1], failed]
    assert told[0]["body"] is None
    assert told[0]["body_left_out"] > 0
    assert told[2]["body"] == {"n": 1, "password": "•••"}
    assert (told[3]["state"], told[3]["error"]) == ("FAILED", "card <expired>")
    assert [row["state"] for row in told[:3]] == ["READY"] * 3
    assert len(b"".join(capped.streaming_content).splitlines()) == 1


def test_a_dead_letter_is_one_in_the_list_and_in_its_export(operator, orders, dead_letters):
    orders.send(1)
    [message] = orders.read()
    message.reject("ValueError: no such card")
    url = reverse("admin:django_pgqueue_message_changelist")

    [row] = rows(operator, "message")
    [line] = operator.get(url, {"export": "jsonl"}).streaming_content

    assert row["state"] == "dead letter"
    assert json.loads(line)["state"] == "DEAD_LETTER"


def test_a_list_asks_as_often_for_many_queues(operator, orders):
    orders.send(1)
    page(operator, "message")
    counts = {}
    for queues in (1, 30):
        for number in range(queues):
            queue(f"q{queues}-{number}").create()
            queue(f"q{queues}-{number}").send(1)
        for state in ("", "ready", "failed"):
            with CaptureQueriesContext(connection) as asked:
                page(operator, "message", state=state)
            plain = [q for q in asked if "SAVEPOINT" not in q["sql"]]
            assert counts.setdefault(state, len(plain)) == len(plain) <= 12


def test_errors_are_in_the_list(operator, orders, failed, dead_letters):
    orders.send(1)
    [message] = orders.read()
    message.reject("ValueError: no such card\nTraceback")

    [died], [ended] = (rows(operator, "message", state=s) for s in ("ready", "failed"))

    assert died["error"] == "ValueError: no such card"
    assert ended["error"] == "card <expired>"


@pytest.mark.parametrize(
    "value", ["NaN", "Infinity", "-Infinity", "1e400", r'"\ud800"', r'"\u0000"', "9" * 5000]
)
def test_a_search_for_json_that_no_message_can_hold_finds_none(operator, orders, value):
    orders.send({"a": 1})

    text = page(operator, "message", q=f"body.a:{value}")

    assert "0 messages" in text
