"""The admin in a real browser: serves it, logs in, and finds faults of a page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.db import connections
from django.test import Client
from django.test.testcases import LiveServerThread
from django.test.utils import override_settings

STRICT = "tests.admin.csp.strict"

EVERY_RULE = ["wcag2a", "wcag2aa", "wcag21aa"]
#: Rules of axe that depend on colours or on the window's width.
RULES_OF_LOOKS = ["color-contrast", "link-in-text-block", "scrollable-region-focusable"]
#: Waits for Django's links, which fade when the colour scheme changes.
COLOURS_CHANGED = "Promise.allSettled(document.getAnimations().map(each => each.finished))"
#: Finds texts and lines of charts with too little contrast, which axe does not check.
FAINT = """() => {
    const pixel = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
    const luminance = colour => {
        pixel.fillStyle = colour;
        pixel.fillRect(0, 0, 1, 1);
        const [red, green, blue] = [...pixel.getImageData(0, 0, 1, 1).data].map(
            part => part <= 10 ? part / 3294 : ((part / 255 + 0.055) / 1.055) ** 2.4);
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05;
    };
    const contrast = (one, other) => {
        const ratio = luminance(one) / luminance(other);
        return Math.max(ratio, 1 / ratio);
    };
    const ground = element => {
        const colour = element ? getComputedStyle(element).backgroundColor : 'white';
        return colour === 'rgba(0, 0, 0, 0)' ? ground(element.parentElement) : colour;
    };
    return [...document.querySelectorAll('.pgqueue svg :is(text, .line)')].filter(each => {
        const {fill, stroke} = getComputedStyle(each);
        return each.matches('text') ? contrast(fill, ground(each)) < 4.5
                                    : contrast(stroke, ground(each)) < 3;
    }).map(each => each.outerHTML.slice(0, 200));
}"""


@contextmanager
def serve(policy: str = STRICT) -> Iterator[str]:
    """Serve the site on the test database during the block; yields its address. ``policy`` is a
    middleware.
    """
    with override_settings(MIDDLEWARE=[policy, *settings.MIDDLEWARE], ALLOWED_HOSTS=["*"]):
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
    """Log in as the scene's superuser, with a cookie: themes have log-in pages of their own."""
    client = Client()
    client.force_login(User.objects.get(username="ann"))
    session = client.cookies[settings.SESSION_COOKIE_NAME]
    page.context.add_cookies([{"name": session.key, "value": session.value, "url": url}])


def faults(page: Any, width: int, rules: list[str], within: str = "#content") -> list[Any]:
    """A page's faults: wider than its window, serious findings of axe, or faint charts."""
    page.set_viewport_size({"width": width, "height": 900})
    page.evaluate(COLOURS_CHANGED)
    found: list[Any] = []
    if page.evaluate("document.documentElement.scrollWidth") > width:
        found.append("wide")
    if page.evaluate("typeof axe") == "undefined":
        # Evaluated, since the policy forbids an inline script element.
        page.evaluate(_axe())
    result = page.evaluate(
        "([within, rules]) => axe.run(within, {resultTypes: ['violations'], runOnly: rules})",
        [within, rules],
    )
    for violation in result["violations"]:
        if violation["impact"] in ("serious", "critical"):
            nodes = [node["html"][:200] for node in violation["nodes"][:3]]
            found.append((violation["id"], nodes))
    if faint := page.evaluate(FAINT):
        found.append(("faint", faint[:3]))
    return found


def _axe() -> str:
    import axe_playwright_python

    return Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text()
