"""Users of the admin, and pages as text."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.contrib.contenttypes.models import ContentType
from django.test import Client
from django.urls import reverse

from django_pgqueue.models import BoundQueue
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


def page(client: Client, model: str, view: str = "changelist", *args: object, **query: Any) -> str:
    """The text of an admin page."""
    url = reverse(f"admin:django_pgqueue_{model}_{view}", args=args)
    response = client.get(url, query, follow=True)
    assert response.status_code == 200, response
    return response.content.decode()


def field(client: Client, pk: int, name: str, model: str = "message") -> str:
    """The text of a field on a message's page."""
    text = page(client, model, "change", pk)
    part = re.split('<div class="form-row|</fieldset', text.partition(f"field-{name}")[2])[0]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", part.partition(">")[2])).split())


def queries(asked: Iterable[dict[str, str]]) -> int:
    """The number of a page's queries, except the savepoints and the timeout reset that the test's
    transaction causes.
    """
    told = [query["sql"] for query in asked]
    return len([sql for sql in told if "SAVEPOINT" not in sql and "SELECT set_config" not in sql])


def rows(client: Client, model: str, **query: Any) -> list[list[str]]:
    """The cells of a list as visible text."""
    text = page(client, model, **query)
    body = text.partition("<tbody>")[2].partition("</tbody>")[0]
    return [
        [
            _plain(cell)
            for cell in re.findall(r'<t[hd] class="field-[^>]*>(.*?)</t[hd]>', row, re.DOTALL)
        ]
        for row in re.findall(r"<tr.*?</tr>", body, re.DOTALL)
    ]


def overview(client: Client, **query: Any) -> dict[str, dict[str, str]]:
    """The overview's rows by queue, each with its cells by label."""
    body = page(client, "queue", **query).partition("<tbody>")[2].partition("</tbody>")[0]
    found = {}
    for row in re.findall(r"<tr.*?</tr>", body, re.DOTALL):
        cells = dict(re.findall(r'data-label="([^"]+)">(.*?)</td>', row, re.DOTALL))
        name = re.search(r'<th scope="row">(.*?)</th>', row, re.DOTALL)
        assert name is not None
        found[_plain(name[1]).split()[0]] = {label: _plain(text) for label, text in cells.items()}
    return found


def alerts(client: Client) -> list[str]:
    """The alerts of the overview."""
    told = re.findall(r'<p class="alert \w+">(.*?)</p>', page(client, "queue"), re.DOTALL)
    return [_plain(text) for text in told]


def _plain(text: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", text)).strip()


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
