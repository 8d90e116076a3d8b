"""Parts of the admin are hidden until they are used."""

from __future__ import annotations

import datetime as dt
import re

import pytest
from django.core.checks import run_checks
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.timezone import now

from django_pgqueue import queue
from django_pgqueue.engine.settings import ADMIN_PARTS
from django_pgqueue.models import Binding, ExportRun, Lake, Message, Queue, Rollup, Schedule
from django_pgqueue.tables.rollup import RollupRun
from tests.admin.conftest import page, plain

#: The lists of each part.
LISTS = {
    "schedules": {"schedule"},
    "topics": {"binding"},
    "exports": {"lake", "exportrun"},
    "rollups": {"rollup", "rolluprun"},
    "batches": {"batch"},
}
#: Lists with a tab above the pages.
TABS = {"schedule", "binding", "lake", "exportrun", "batch"}
ALWAYS = {"queue", "message", "process", "bulkaction", "auditentry"}

FIRST = {
    "schedules": lambda orders: Schedule.objects.create(
        name="nightly", queue=orders, interval=dt.timedelta(days=1)
    ),
    "topics": lambda orders: Message.objects.bind("order.#", orders),
    "exports": lambda orders: Lake.objects.create(path="/lake"),
    "rollups": lambda orders: RollupRun.objects.create(
        seconds=3600, from_at=now(), to_at=now(), below_xid=7, buckets=0, started_at=now()
    ),
    "batches": lambda orders: queue("orders").open_batch(),
}


def listed(client: Client) -> set[str]:
    """The lists of ours that the index of the site links to."""
    text = client.get(reverse("admin:index")).content.decode()
    return set(re.findall(r'href="/admin/django_pgqueue/(\w+)/"', text))


def navigation(text: str) -> set[str]:
    """The links of the navigation of a page."""
    nav = text.partition('class="pgqueue-nav"')[2].partition("</nav>")[0]
    return set(re.findall(r'href="/admin/django_pgqueue/(\w+)/"', nav))


def unused(text: str) -> str:
    """The line of the overview that names what is hidden."""
    return plain(text.partition("Not used yet:")[2].partition("</p>")[0])


def test_a_new_project_sees_queues_messages_and_what_runs(admin_client, orders):
    assert listed(admin_client) == ALWAYS
    assert navigation(page(admin_client, "queue")) == ALWAYS


@pytest.mark.parametrize("part", ADMIN_PARTS)
def test_a_part_is_shown_once_its_first_row_exists(admin_client, orders, part):
    FIRST[part](Queue.objects.get(name="orders"))

    assert listed(admin_client) == ALWAYS | LISTS[part]
    assert navigation(page(admin_client, "queue")) - ALWAYS == LISTS[part] & TABS


def test_roll_ups_without_a_run_are_shown(admin_client, db):
    Rollup.objects.create(queue_name="orders", seconds=3600, bucket=now())

    assert listed(admin_client) == ALWAYS | LISTS["rollups"]


@pytest.mark.parametrize("part", ADMIN_PARTS)
def test_a_part_is_shown_before_its_first_row_by_the_setting(admin_client, db, settings, part):
    settings.PGQUEUE = {"ADMIN_SHOWS": [part]}

    assert listed(admin_client) == ALWAYS | LISTS[part]


@pytest.mark.parametrize("name", sorted(set.union(*LISTS.values())))
def test_a_hidden_page_opens_by_its_url(admin_client, orders, name):
    text = page(admin_client, name)

    assert "<h1>" in text
    if name in ("schedule", "binding", "batch"):
        assert navigation(text) == ALWAYS | {name}


def test_the_overview_leads_to_what_can_be_added_until_it_is(admin_client, orders):
    assert unused(page(admin_client, "queue")) == "Schedules , Topic bindings"

    FIRST["schedules"](Queue.objects.get(name="orders"))
    assert unused(page(admin_client, "queue")) == "Topic bindings"

    FIRST["topics"](Queue.objects.get(name="orders"))
    assert "Not used yet" not in page(admin_client, "queue")


@pytest.mark.parametrize(
    ("permissions", "named"),
    [(["view_queue"], ""), (["view_queue", "view_schedule"], "Schedules")],
)
def test_the_overview_names_only_what_the_user_may_see(staff, orders, permissions, named):
    assert unused(page(staff(*permissions), "queue")) == named


def test_what_is_used_needs_a_permission_as_before(staff, orders):
    for first in FIRST.values():
        first(Queue.objects.get(name="orders"))
    client = staff("view_queue", "view_schedule")

    assert listed(client) == {"queue", "schedule"}
    for name in sorted(set.union(*LISTS.values()) - {"schedule"}):
        address = reverse(f"admin:django_pgqueue_{name}_changelist")
        assert client.get(address).status_code == 403, name


def test_the_first_topic_is_bound_in_the_admin(staff, orders):
    client = staff("view_queue", "view_binding", "add_binding", "delete_binding")
    address = reverse("admin:django_pgqueue_binding_add")
    pk = Queue.objects.get(name="orders").pk

    refused = client.post(address, {"pattern": "order..paid", "queue": pk})
    client.post(address, {"pattern": "order.#", "queue": pk})

    assert "is not a topic pattern" in plain(refused.content.decode())
    [binding] = Binding.objects.all()
    assert Message.objects.publish("order.paid", {"order": 7}).keys() == {"orders"}
    assert "binding" in listed(client)
    client.post(reverse("admin:django_pgqueue_binding_delete", args=[binding.pk]), {"post": "yes"})
    assert Message.objects.publish("order.paid", {"order": 7}) == {}


def test_a_topic_binding_is_not_edited(admin_client, orders):
    """Processes that publish would not notice it."""
    Message.objects.bind("order.#", "orders")
    binding = Binding.objects.get()
    address = reverse("admin:django_pgqueue_binding_change", args=[binding.pk])

    assert "order.#" in admin_client.get(address).content.decode()
    changed = admin_client.post(address, {"pattern": "#", "queue": binding.queue_id})

    assert changed.status_code == 403
    assert Binding.objects.get().pattern == "order.#"


def test_an_empty_list_names_the_command_that_fills_it(admin_client, db):
    assert "manage.py pgqueue_export" in page(admin_client, "lake")
    assert "manage.py pgqueue_rollup" in page(admin_client, "rollup")

    lake = Lake.objects.create(path="/lake")
    ExportRun.objects.create(lake=lake)

    assert "manage.py pgqueue_export" not in page(admin_client, "exportrun")


@pytest.mark.parametrize(("permissions", "times"), [(["view_schedule"], 1), ([], 0)])
def test_a_page_of_another_app_asks_once_if_the_user_has_a_permission(staff, permissions, times):
    client = staff("view_user", *permissions)

    with CaptureQueriesContext(connection) as asked:
        client.get(reverse("admin:auth_user_changelist"))

    assert sum("pgqueue_" in query["sql"] for query in asked) == times


@pytest.mark.parametrize("name", ["queue", "lake", "auth_user"])
def test_no_page_needs_a_savepoint_for_it(committed_orders, admin_client, name):
    app = "" if name == "auth_user" else "django_pgqueue_"

    with CaptureQueriesContext(connection) as asked:
        admin_client.get(reverse(f"admin:{app}{name}_changelist"))

    told = [query["sql"] for query in asked]
    assert sum("pgqueue_rollup_run" in sql for sql in told) == 1
    assert not [sql for sql in told if "SAVEPOINT" in sql]


def test_everything_is_shown_where_the_tables_cannot_be_read(admin_client, orders, sql):
    sql("ALTER TABLE pgqueue_lake RENAME TO gone")

    assert listed(admin_client) == ALWAYS.union(*LISTS.values())
    assert queue("orders").send(1)  # the transaction goes on


def test_lakes_and_export_runs_have_tabs(admin_client, orders):
    run = ExportRun.objects.create(lake=Lake.objects.create(path="/lake"), rows=120_004)

    for model in ("lake", "exportrun"):
        text = page(admin_client, model)
        tabs = text.partition('class="pgqueue-nav"')[2].partition("</nav>")[0]
        url = reverse(f"admin:django_pgqueue_{model}_changelist")
        assert f'href="{url}" aria-current="page"' in tabs
    assert ">120,004<" in text
    assert str(run.pk) in text


@pytest.mark.parametrize("wrong", ["topics", ["topic"], 7, [["topics"]]])
def test_an_invalid_setting_fails_no_page(operator, orders, settings, wrong):
    """The check E006 reports it: no request needs to."""
    settings.PGQUEUE = {"ADMIN_SHOWS": wrong}

    assert operator.get(reverse("admin:index")).status_code == 200
    assert "Not used yet" not in page(operator, "queue")
    assert "E006" in {each.id.rpartition(".")[2] for each in run_checks()}
