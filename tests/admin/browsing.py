"""The admin in a real browser: a server for it, and the way in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.db import connections
from django.test.testcases import LiveServerThread
from django.test.utils import override_settings
from django.urls import reverse

POLICY = "tests.admin.csp.strict"


@contextmanager
def serve() -> Iterator[str]:
    """The test database's site under a strict policy, until the block ends; its address."""
    with override_settings(MIDDLEWARE=[POLICY, *settings.MIDDLEWARE], ALLOWED_HOSTS=["*"]):
        thread = LiveServerThread("127.0.0.1", StaticFilesHandler)
        thread.daemon = True
        thread.start()
        thread.is_ready.wait()
        if thread.error:
            raise thread.error
        try:
            yield f"http://127.0.0.1:{thread.port}"
        finally:
            thread.terminate()
            connections.close_all()


def sign_in(page: Any, url: str) -> None:
    page.goto(url + reverse("admin:login"))
    page.fill("#id_username", "ann")
    page.fill("#id_password", "ann")
    page.click("input[type=submit]")
    page.wait_for_selector("#user-tools")
