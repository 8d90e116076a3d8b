"""Groups: their list, the page of one, and what can be done there."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_pgqueue import queue
from django_pgqueue.admin import groups
from django_pgqueue.engine.statements import compose
from django_pgqueue.models import ArchivedMessage, AuditEntry, GroupSetting, Message, Queue
from tests.admin.conftest import MOST, OF_PERMISSIONS, confirm, page, plain, queries

#: Names that break quoting, HTML, URLs, or a reader's eye.
HOSTILE = [
    "<script>alert(1)</script>",
    "\"' onmouseover='x",
    "a/b//../c?d=e&f#g%2F+h",
    " ",
    "100%s %(x)s {y}",
    "invoice\u202efdp.exe",
    "x" * 255,
]


@pytest.fixture
def pk(orders: Any) -> int:
    return int(Queue.objects.get(name="orders").pk)


def listed(client: Client, pk: int, **query: Any) -> list[str]:
    """The rows of the list of groups, as visible text."""
    text = page(client, "queue", "groups", pk, **query)
    body = text.partition("<tbody>")[2].partition("</tbody>")[0]
    return [plain(row) for row in re.findall(r"<tr.*?</tr>", body, re.DOTALL)]


def in_order(text: str) -> list[int]:
    """The ids that a group's page shows, in its order."""
    body = text.partition("<tbody>")[2].partition("</tbody>")[0]
    return [int(pk) for pk in re.findall(r"/message/(\d+)/change", body)]


def test_paused_and_blocked_groups_come_before_larger_ones(operator, orders, pk):
    GroupSetting.objects.bulk_create(
        GroupSetting(queue_id=pk, group_key=f"a{number:05}", limit=2) for number in range(10_000)
    )
    orders.send_batch([1] * 9, group="large")
    orders.send_batch([1] * 3, group="stuck")
    orders.send_batch([1] * 2, group="z paused")
    orders.group("z paused").pause()
    for message in orders.read(qty=3):
        if message.group_key == "stuck":
            orders.retry({message.receipt: 3600}, errors={message.receipt: "no card"})

    text = page(operator, "queue", "overview", pk)
    rows = listed(operator, pk)

    assert [row.split("  ")[0][:8] for row in rows[:2]] == ["stuck 3 ", "z paused"]
    assert "its retry is at" in rows[0]
    assert rows[2].startswith("large 9")
    assert len(rows) == 50
    assert plain(text).index("z paused") < plain(text).index("large 9")
    assert "All 10,003 groups" in text
    assert [row[:8] for row in listed(operator, pk, only="paused")] == ["z paused"]
    assert [row[:5] for row in listed(operator, pk, only="blocked")] == ["stuck"]
    assert len(listed(operator, pk, only="own", skip="9990")) == 11


def test_groups_of_a_long_queue_are_estimated_and_said_to_be(operator, orders, pk, monkeypatch):
    monkeypatch.setattr(groups, "LOOK", 100)
    monkeypatch.setattr(groups, "ENOUGH", 50)
    for number in range(30):
        orders.send_batch([1] * 10, group=f"a{number:02}")
    orders.send_batch([1] * 300, group="z large")

    text = page(operator, "queue", "groups", pk)

    rows = listed(operator, pk)
    assert rows[0].startswith("z large ≈ 300 ")
    assert rows[1].startswith("a00 10 ")
    assert "estimated from a sample" in text
    assert "estimated from a sample" in page(operator, "queue", "overview", pk)
    assert "31+ groups" in text


def test_the_list_of_groups_joins_no_two_large_sets(orders, pk):
    """Such as heads and delayed messages, for which the planner may loop over both."""
    text = compose(
        "groups/found",
        {"only": "true", "enough": 1, **Queue.objects.get(pk=pk).tables},
        "django_pgqueue.admin",
    )
    with connection.cursor() as cursor:
        cursor.execute(
            f"EXPLAIN (FORMAT JSON) {text}", {"look": 9, "blocks": 9, "most": 51, "skip": 0}
        )
        [[plan]] = cursor.fetchall()

    joins = re.findall(r"'Node Type': '([^']*(?:Join|Nested Loop))'", str(plan))
    # The queue's row, and four look-ups for each group of the page.
    assert joins == ["Nested Loop"] * 6


def test_a_groups_page_has_its_messages_in_order_and_what_blocks_them(operator, orders, pk):
    ids = orders.send_batch([{"n": n} for n in range(60)], group="g")
    orders.send(1, group="other")
    [message] = [m for m in orders.read(qty=2) if m.group_key == "g"]
    orders.retry({message.receipt: 3600}, errors={message.receipt: "no <card>"})

    text = page(operator, "queue", "group", pk, key="g")
    [following] = set(re.findall(r'href="([^"]+)">Next page', text))
    url = reverse("admin:django_pgqueue_queue_group", args=[pk])
    rest = operator.get(following.replace("&amp;", "&")).content.decode()

    assert following.startswith(url)
    assert in_order(text) + in_order(rest) == ids
    note = text.partition('<p class="note')[2].partition("</p>")[0]
    assert f"/message/{ids[0]}/change/?queue={pk}" in note
    assert "Blocked by message" in note
    assert "no &lt;card&gt;" in note
    assert "1, in order" in text


def test_a_group_with_slots_shows_its_limit_its_rate_and_why_messages_wait(operator, orders, pk):
    orders.alter(group_limit=2, group_rate="30/m")
    orders.send_batch([1] * 5, group="g")
    held = [message.id for message in orders.read(qty=5)]

    text = plain(page(operator, "queue", "group", pk, key="g"))
    of_queue = plain(page(operator, "queue", "overview", pk))

    assert len(held) == 2
    assert "5 messages 2 in flight 3 waiting" in text
    assert "2 limit of the queue&#x27;s groups".replace("&#x27;", "'") in text
    assert "30/min rate of the queue's groups" in text
    assert re.search(r"3 wait for their group's (limit, 2|rate, 30/min)", of_queue)


def test_a_group_that_has_its_own_rate_is_not_said_to_have_the_queues(operator, orders, pk):
    orders.alter(group_rate="1/h")
    orders.send_batch([1] * 3, group="g")
    orders.read(qty=3)

    assert "2 wait for their group's rate, 1/h" in plain(page(operator, "queue", "overview", pk))

    orders.group("g").rate("2/h")

    assert "2 wait for their group's rate" in plain(page(operator, "queue", "overview", pk))
    assert "rate, 1/h" not in page(operator, "queue", "overview", pk)


@pytest.mark.parametrize("key", HOSTILE, ids=range(len(HOSTILE)))
def test_a_group_of_any_name_is_opened_paused_resumed_and_cancelled(operator, orders, pk, key):
    ids = orders.send_batch([1, 2], group=key)
    others = orders.send_batch([1, 2], group="other")
    of_group = f"{reverse('admin:django_pgqueue_queue_group', args=[pk])}?key={quote(key)}"
    text = page(operator, "queue", "groups", pk)
    [link] = [
        link.replace("&amp;", "&")
        for link in re.findall(
            r'href="([^"]+/group/\?[^"]+)"', page(operator, "queue", "groups", pk)
        )
        if "key=other" not in link
    ]
    assert in_order(operator.get(link).content.decode()) == ids
    assert in_order(operator.get(of_group).content.decode()) == ids
    assert "<script>alert" not in text
    pause, resume, cancel = (
        reverse(f"admin:django_pgqueue_queue_group_{name}", args=[pk])
        for name in ("pause", "resume", "cancel")
    )

    answer = operator.post(pause, {"key": key, "back": of_group})
    assert answer.headers["Location"] == of_group
    assert GroupSetting.objects.get().group_key == key
    assert "<script>alert" not in operator.get(of_group).content.decode()
    operator.post(resume, {"key": key})
    assert not GroupSetting.objects.exists()

    asked = operator.get(cancel, {"key": key}).content.decode()
    assert "Cancel 2 messages of orders?" in asked
    confirm(operator, f"{cancel}?key={quote(key)}", asked)
    assert sorted(ArchivedMessage.objects.values_list("pk", flat=True)) == ids
    assert orders.metrics().length == len(others)


@pytest.mark.parametrize("key", ["", "x" * 1000, "a\x00b"], ids=["empty", "1,000", "NUL"])
def test_a_name_that_no_group_can_have_changes_nothing_and_is_said_to_be_wrong(operator, pk, key):
    text = page(operator, "queue", "group", pk, key=key)
    pause = reverse("admin:django_pgqueue_queue_group_pause", args=[pk])

    assert key == "" or "has 1 to 255 characters" in text
    assert operator.post(pause, {"key": key}).status_code == 404
    assert not GroupSetting.objects.exists()


def test_settings_of_a_group_are_changed_on_its_page(operator, orders, pk):
    orders.alter(group_rate="100/s")
    url = reverse("admin:django_pgqueue_queue_group_settings", args=[pk])

    operator.post(url, {"key": "g", "limit": "5", "rate": "10/s"})
    text = plain(page(operator, "queue", "group", pk, key="g"))
    wrong = operator.post(url, {"key": "g", "limit": "0"}, follow=True).content.decode()
    kept = GroupSetting.objects.get()
    operator.post(url, {"key": "g"})

    assert "5 limit, its own 10/s rate, its own" in text
    assert "1 to 10000" in plain(wrong)
    assert (kept.limit, kept.rate) == (5, "10/s")
    assert not GroupSetting.objects.exists()
    logged = AuditEntry.objects.filter(arguments__contains={"group": "g"}).order_by("pk")
    assert [(each.operation, each.arguments) for each in logged] == [
        ("alter", {"group": "g", "limit": [None, 5], "rate": [None, "10/s"]}),
        ("reset", {"group": "g", "limit": [5, None], "rate": ["10/s", None]}),
    ]
    assert {(each.who, each.place) for each in logged} == {("ann", "admin")}


def test_without_the_permission_there_is_no_button_and_no_way(staff, orders, pk):
    orders.send({"secret": 1}, group="g")
    client = staff("view_queue")

    text = page(client, "queue", "group", pk, key="g")

    assert "secret" not in text
    for name in ("pause", "resume", "settings", "cancel"):
        url = reverse(f"admin:django_pgqueue_queue_group_{name}", args=[pk])
        assert url not in text
        assert client.post(url, {"key": "g"}).status_code == 403
    assert Message.objects.metrics("orders").length == 1


def test_groups_of_a_queue_that_the_user_may_not_see_do_not_exist(operator, pk, settings):
    settings.PGQUEUE = {"QUEUES_FOR": "tests.admin.access.ours"}

    for name in (
        "groups",
        "group",
        "group_pause",
        "group_resume",
        "group_settings",
        "group_cancel",
    ):
        url = reverse(f"admin:django_pgqueue_queue_{name}", args=[pk])
        assert operator.post(url, {"key": "g"}).status_code == 404, name
    assert operator.get(reverse("admin:django_pgqueue_queue_groups", args=[pk])).status_code == 404


def test_a_page_of_groups_asks_as_often_as_any(operator, orders, pk):
    orders.alter(group_limit=2, group_rate="30/m")
    for number in range(60):
        orders.send_batch([1] * 3, group=f"g{number}")
    orders.read(qty=50)
    asked = {}
    for name, query in (("groups", {}), ("group", {"key": "g1"}), ("overview", {})):
        page(operator, "queue", name, pk, **query)
        with CaptureQueriesContext(connection) as each:
            page(operator, "queue", name, pk, **query)
        asked[name] = queries(each)

    assert {name: count for name, count in asked.items() if count > MOST + OF_PERMISSIONS} == {}


def test_one_customer_is_paused_in_two_clicks_from_the_overview(operator, orders, pk):
    orders.send_batch([1] * 3, group="customer 7")
    of_queue = reverse("admin:django_pgqueue_queue_overview", args=[pk])
    assert f'href="{of_queue}"' in page(operator, "queue")

    text = operator.get(of_queue).content.decode()
    form = text.partition('/group/pause/"')[2].partition("</form>")[0]
    fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', form))
    pause = reverse("admin:django_pgqueue_queue_group_pause", args=[pk])
    answer = operator.post(pause, fields)

    assert answer.headers["Location"] == of_queue
    assert orders.group("customer 7").settings().paused
    assert orders.read() == []


def test_a_message_leads_to_its_group(operator, orders, pk):
    sent = orders.send(1, group="a&b")

    text = page(operator, "message", "change", sent)

    assert f"/queue/{pk}/group/?key=a%26b" in text


def test_delayed_followers_and_started_messages_are_counted_once(operator, orders, pk):
    """In a FIFO group, in one with slots, and in one whose slots a start frees."""
    queue("orders").send_batch([1] * 4, group="fifo")
    orders.read_grouped(qty=3)
    [fifo] = listed(operator, pk)
    orders.group("slots").limit(2)
    orders.send_batch([1] * 2, group="slots", delay=3600)
    orders.send_batch([1] * 3, group="slots")
    orders.read(qty=5)

    assert fifo.startswith("fifo 4 ")
    assert listed(operator, pk)[1].startswith(("slots 5 ", "fifo 4 "))
    assert "5 messages" in plain(page(operator, "queue", "group", pk, key="slots"))
