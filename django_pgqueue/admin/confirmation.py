"""The page between choosing an action and doing it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.http import HttpRequest
from django.template.response import TemplateResponse

from django_pgqueue.admin.pages import PageAdmin

__all__ = ["ask", "confirmed"]


def confirmed(request: HttpRequest, typed: str = "") -> bool:
    """Whether this request comes from the page that :func:`ask` shows."""
    return "confirmed" in request.POST and request.POST.get("typed", "").strip() == typed


def ask(
    model_admin: PageAdmin,
    request: HttpRequest,
    *,
    title: str,
    question: str,
    items: Iterable[object],
    fields: dict[str, Any],
    typed: str = "",
) -> TemplateResponse:
    """Ask whether the action shall be done; yes sends the fields to the same address.

    With ``typed``, yes takes that name, too: :func:`confirmed` compares them.
    """
    return model_admin.render_page(
        request,
        "admin/django_pgqueue/confirm_action.html",
        {
            "title": title,
            "question": question,
            "items": items,
            "fields": fields,
            "typed": typed,
            "back": request.get_full_path(),
        },
    )
