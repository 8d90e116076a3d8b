"""A strict Content-Security-Policy, as a careful site sets it."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

POLICY = "default-src 'self'; object-src 'none'; base-uri 'self'; frame-ancestors 'none'"
#: Includes what django-unfold needs.
POLICY_OF_UNFOLD = f"{POLICY}; script-src 'self' 'unsafe-eval'; style-src 'self' 'unsafe-inline'"

Response = Callable[[HttpRequest], HttpResponse]


def strict(get_response: Response) -> Response:
    """Middleware: no inline code, and nothing from other origins."""
    return _with(POLICY, get_response)


def of_unfold(get_response: Response) -> Response:
    """Middleware: as strict as django-unfold allows."""
    return _with(POLICY_OF_UNFOLD, get_response)


def _with(policy: str, get_response: Response) -> Response:
    def respond(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        response.headers["Content-Security-Policy"] = policy
        return response

    return respond
