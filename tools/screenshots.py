"""Screenshots of every page of the admin, on a wide and on a narrow screen.

    python -m tools.screenshots [directory] [--dark] [--unfold] [--language de] [--only NAME ...]

Plays the scene of the browser tests into a database of its own, on the tests' server. Needs
Chromium and Playwright.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WIDTHS = (1280, 390, 1600)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", nargs="?", default="screenshots", type=Path)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--unfold", action="store_true", help="use the theme django-unfold")
    parser.add_argument("--language", default="en", help="language of the pages")
    parser.add_argument("--only", nargs="+", help="only the pages of these names")
    options = parser.parse_args()
    # Playwright runs an event loop in this thread, in which Django would refuse database queries.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"

    import django
    from django.conf import settings

    settings.USE_I18N, settings.LANGUAGE_CODE = True, options.language
    for database in settings.DATABASES.values():
        database["TEST"]["NAME"] += "_screenshots"
    django.setup()

    from django.test.utils import setup_databases, setup_test_environment, teardown_databases

    setup_test_environment()
    settings.ALLOWED_HOSTS.append("127.0.0.1")
    databases = setup_databases(verbosity=0, interactive=False)
    try:
        _take(options)
    finally:
        _disconnect()
        teardown_databases(databases, verbosity=0)


def _disconnect() -> None:
    """Close connections that cut-off requests have left open."""
    from django.db import connections

    for connection in connections.all():
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )


def _take(options: argparse.Namespace) -> None:
    from playwright.sync_api import sync_playwright

    from tests.admin import browsing, scenes

    options.directory.mkdir(parents=True, exist_ok=True)
    scheme = "dark" if options.dark else "light"
    scenes.superuser()
    scenes.play()
    with ExitStack() as stack:
        policy, drawn = browsing.STRICT, "html"
        if options.unfold:
            from tests.admin import unfold_site

            stack.enter_context(unfold_site.installed())
            policy, drawn = "tests.admin.csp.of_unfold", unfold_site.DRAWN[scheme]
        url = stack.enter_context(browsing.serve(policy))
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        stack.callback(browser.close)
        for width in WIDTHS:
            context = browser.new_context(
                viewport={"width": width, "height": 900}, color_scheme=scheme
            )
            page = context.new_page()
            browsing.sign_in(page, url)
            for name, path in pages():
                if options.only and name not in options.only:
                    continue
                scenes.beat()
                page.goto(url + path)
                page.wait_for_selector(drawn)
                wide = page.evaluate("document.documentElement.scrollWidth")
                target = (
                    options.directory / f"{name}-{width}{'-dark' if scheme == 'dark' else ''}.png"
                )
                page.screenshot(path=target, full_page=True)
                print(target, "" if wide <= width else f"(too wide: {wide} pixels)")
            context.close()


def pages() -> Iterator[tuple[str, str]]:
    """The name and path of every page, using the scene's objects."""
    from django.urls import reverse

    from django_pgqueue.admin.failures import WINDOWS, Failures
    from django_pgqueue.models import (
        ArchivedMessage,
        Batch,
        BulkAction,
        Message,
        Process,
        Queue,
        Schedule,
    )

    def path(name: str, *args: object, **query: str) -> str:
        return reverse(f"admin:django_pgqueue_{name}", args=args, query=query)

    payments = Queue.objects.get(name="payments")
    dead = Message.objects.filter(queue__name="payments.dead").latest("pk")
    failed = ArchivedMessage.objects.filter(state="FAILED").latest("pk")
    yield "index", reverse("admin:index")
    yield "queues", path("queue_changelist")
    yield "queue", path("queue_overview", payments.pk)
    yield "queue-days", path("queue_overview", payments.pk, range="day")
    thumbnails = Queue.objects.get(name="thumbnails")
    yield "tasks", path("queue_tasks", thumbnails.pk)
    invoices = Queue.objects.get(name="invoices")
    yield "groups", path("queue_groups", invoices.pk)
    yield "group", path("queue_group", invoices.pk, key="customer-0")
    yield "queue-settings", path("queue_change", payments.pk)
    yield "queue-send", path("queue_send", payments.pk)
    yield "queue-delete", path("queue_delete", payments.pk)
    yield "messages", path("message_changelist")
    yield "messages-delayed", path("message_changelist", state="delayed", queue=str(payments.pk))
    yield "message-dead", path("message_change", dead.pk)
    yield "message", path("message_change", Message.objects.earliest("pk").pk)
    yield "messages-failed", path("message_changelist", state="failed")
    yield "message-failed", path("message_change", failed.pk)
    yield "message-copy", path("queue_send", failed.queue_id, copy=failed.pk)
    yield "failures", path("message_failures")
    group = Failures([failed.queue_id], [], WINDOWS["7d"]).groups(1)[0]
    yield "failure", path("message_failure", group.kind)
    yield "batches", path("batch_changelist")
    running = Batch.objects.earliest("pk")
    yield "batch", path("batch_change", running.pk)
    yield "batch-failing", path("batch_change", Batch.objects.exclude(error="").latest("pk").pk)
    yield "batch-cancel", path("batch_cancel", running.pk)
    yield "batch-queue", path("queue_overview", running.queue_id)
    member = Message.objects.filter(headers={"x-batch": running.pk}).earliest("pk")
    yield "batch-message", path("message_change", member.pk)
    yield "schedules", path("schedule_changelist")
    often = Schedule.objects.earliest("pk")
    yield "schedule", path("schedule_change", often.pk)
    missed = next(tick for tick in often.latest_ticks if tick.is_missed)
    yield "schedule-missed", path("schedule_missed", often.pk, missed.microseconds)
    yield "topics", path("binding_changelist")
    yield "topic-add", path("binding_add")
    yield "bulk-actions", path("bulkaction_changelist")
    yield "bulk-action", path("bulkaction_change", BulkAction.objects.latest("pk").pk)
    yield "charts", path("rollup_charts")
    yield "charts-queue", path("rollup_charts", queue="payments")
    yield "rollups", path("rollup_changelist")
    yield "queue-purge", path("queue_purge", payments.pk)
    yield "consumers", path("process_changelist")
    yield "stacks", path("process_stacks", Process.objects.get(host="web-1").pk)
    yield "database", path("health")
    yield "audit", path("auditentry_changelist")


if __name__ == "__main__":
    main()
