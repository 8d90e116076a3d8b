"""Users of the admin, and pages as text."""

from __future__ import annotations

import datetime as dt
import html
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import pytest
from django.contrib.auth.models import Permission, User
from django.contrib.contenttypes.models import ContentType
from django.test import Client
from django.urls import reverse
from django.utils.timezone import now

from django_pgqueue.models import BoundQueue, History, Process, Queue
from tests.admin import browsing, scenes
from tools.screenshots import ARGUMENTS, CHROMIUM


@pytest.fixture
def staff(db: None) -> Callable[..., Client]:
    """A client of a user with these permissions only: ``staff("view_message")``."""

    def log_in(*permissions: str) -> Client:
        user = User.objects.create_user("ann", password="ann", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        client = Client()
        client.force_login(user)
        return client

    return log_in


@pytest.fixture
def operator(staff: Callable[..., Client]) -> Client:
    """A user with all permissions for queues and messages."""
    return staff(
        *(f"{verb}_queue" for verb in ("add", "view", "change", "delete", "pause", "purge")),
        *(f"{verb}_message" for verb in ("view", "send", "settle", "redrive", "delete")),
        *("replay_archivedmessage", "view_bulkaction"),
    )


@pytest.fixture
def failed(orders: BoundQueue) -> int:
    """The id of a message that ended as FAILED."""
    message_id = orders.send({"total": "<b>7</b>"}, headers={"trace": "abc"})
    [message] = orders.read()
    message.reject("card <expired>")
    return message_id


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def policy() -> str:
    """The middleware that sets the site's Content-Security-Policy."""
    return browsing.STRICT


@pytest.fixture
def site(committed: None, policy: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    # Playwright runs an event loop in this thread, in which Django would refuse database queries.
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    ContentType.objects.clear_cache()  # another test's flush deleted the rows
    scenes.superuser()
    with browsing.serve(policy) as address:
        yield address


@pytest.fixture
def visit(chromium: Any, site: str) -> Iterator[Callable[..., Any]]:
    """Open a page as a logged-in user; ``page.said`` collects the console's messages."""
    contexts = []

    def start(width: int = 1280, scheme: str = "light") -> Any:
        context = chromium.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, base_url=site
        )
        contexts.append(context)
        page = context.new_page()
        page.said = []
        page.on("console", lambda message: _noted(page.said, message))
        page.on("pageerror", lambda error: page.said.append(str(error)))
        page.on("dialog", lambda dialog: page.said.append(dialog.message))
        browsing.sign_in(page, site)
        return page

    yield start
    for context in contexts:
        context.close()


def _noted(said: list[str], message: Any) -> None:
    if not message.location["url"].endswith("/favicon.ico"):  # the tests' site has no icon
        said.append(message.text)


def consumer(*queues: str, silent_for: dt.timedelta = dt.timedelta(0), **values: Any) -> Process:
    """A process that consumes these queues, and had its last heartbeat this long ago."""
    values = {"host": "web-1", "heartbeat_at": now() - silent_for, **values}
    return Process.objects.create(pid=7, version="1", queues=list(queues), **values)


def happened(minutes: float, process_id: int = 1, seconds: int = 60, **counts: Any) -> None:
    """Add history of the queue ``orders``, some minutes old; process 0 stands for a sample."""
    bucket = (now() - dt.timedelta(minutes=minutes)).replace(second=0, microsecond=0)
    History.objects.create(
        queue=Queue.objects.get(name="orders"),
        bucket=bucket if seconds == 60 else bucket.replace(minute=0),
        seconds=seconds,
        process_id=process_id,
        **counts,
    )


def page(client: Client, model: str, view: str = "changelist", *args: object, **query: Any) -> str:
    """The text of an admin page."""
    url = reverse(f"admin:django_pgqueue_{model}_{view}", args=args)
    response = client.get(url, query, follow=True)
    assert response.status_code == 200, response
    return response.content.decode()


#: The most queries of a page, and further ones for a user's permissions: a superuser has all.
MOST, OF_PERMISSIONS = 15, 2


class Shown(NamedTuple):
    """What the page of a message shows."""

    state: str
    why: str
    life: str
    facts: dict[str, str]


def shown(client: Client, pk: int) -> Shown:
    """The page of a message, as visible text."""
    text = page(client, "message", "change", pk)
    state = text.partition('<span class="chip')[2].partition("</span>")[0].partition(">")[2]
    why = text.partition('<p class="note')[2].partition("</p>")[0].partition(">")[2]
    life = text.partition('<ol class="pgqueue-timeline">')[2].partition("</ol>")[0]
    facts = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", text, re.DOTALL)
    return Shown(
        plain(state),
        plain(why.partition('<a href="/admin/django_pgqueue/message/failures')[0]),
        plain(life),
        {plain(name): plain(value) for name, value in facts},
    )


def queries(asked: Iterable[dict[str, str]]) -> int:
    """The number of a page's queries, except the savepoints and the timeout reset that the test's
    transaction causes.
    """
    told = [query["sql"] for query in asked]
    return len([sql for sql in told if "SAVEPOINT" not in sql and "SELECT set_config" not in sql])


def rows(client: Client, model: str, **query: Any) -> list[dict[str, str]]:
    """The rows of a list, by the names of their fields, as visible text."""
    text = page(client, model, **query)
    body = text.partition("<tbody>")[2].partition("</tbody>")[0]
    cell = re.compile(r'<t[hd] class="field-([\w-]+)[^>]*>(.*?)</t[hd]>', re.DOTALL)
    return [
        {name: plain(value) for name, value in cell.findall(row)}
        for row in re.findall(r"<tr.*?</tr>", body, re.DOTALL)
    ]


def ids(client: Client, model: str = "message", **query: Any) -> list[int]:
    """The ids that a list shows."""
    return [int(row["id"]) for row in rows(client, model, **query)]


def overview(client: Client, **query: Any) -> dict[str, dict[str, str]]:
    """The overview's rows by queue, each with its cells by label; idle queues are last."""
    found = {}
    for row in re.findall(r"<tr><th.*?</tr>", page(client, "queue", **query), re.DOTALL):
        if "data-label" in row:
            cells = dict(re.findall(r'data-label="([^"]+)">(.*?)</td>', row, re.DOTALL))
            name = re.search(r'<span class="name" title="([^"]*)"', row)
            assert name is not None
            found[name[1]] = {label: plain(text) for label, text in cells.items()}
    return found


def alerts(client: Client) -> list[str]:
    """The alerts of the overview, each in a line; see :func:`young`."""
    text = page(client, "queue")
    told = re.findall(r'<tr class="(?:bad|warning)">(.*?)<td class="since">', text, re.DOTALL)
    return [young(plain(each)) for each in told]


def young(text: str) -> str:
    """The text with all ages below a minute as 0 s, however long the test takes."""
    return re.sub(r"\b\d+ s\b", "0 s", text)


def plain(text: str) -> str:
    """What a part of a page says."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


def answer(asked: str) -> dict[str, str]:
    """The hidden fields of a confirmation page's form."""
    form = asked.partition('class="delete-confirmation"')[2].partition("</form>")[0]
    fields = dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', form))
    fields = {name: html.unescape(value) for name, value in fields.items()}
    assert fields["confirmed"] == "yes"
    del fields["csrfmiddlewaretoken"]
    return fields


def confirm(client: Client, url: str, asked: str, **more: Any) -> str:
    """Confirm on a confirmation page; returns the next page's text."""
    response = client.post(url, {**answer(asked), **more}, follow=True)
    assert response.status_code == 200, response
    return response.content.decode()


def act(client: Client, model: str, action: str, *pks: object, **more: Any) -> str:
    """Run an action on some rows of a list; returns the next page's text."""
    response = client.post(
        reverse(f"admin:django_pgqueue_{model}_changelist"),
        {"action": action, "_selected_action": pks, **more},
        follow=True,
    )
    assert response.status_code == 200, response
    return response.content.decode()
