"""The page between choosing an action and doing it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import django
from django.contrib import admin
from django.http import HttpRequest
from django.template.response import TemplateResponse

__all__ = ["CRUMBS_ARE_A_LIST", "ask", "confirmed"]

#: How the admin's own templates write the way back.
CRUMBS_ARE_A_LIST = django.VERSION >= (6, 1)


def confirmed(request: HttpRequest) -> bool:
    """Whether this request comes from the page that :func:`ask` shows."""
    return "confirmed" in request.POST


def ask(
    model_admin: admin.ModelAdmin,
    request: HttpRequest,
    *,
    title: str,
    question: str,
    items: Iterable[object],
    fields: dict[str, Any],
) -> TemplateResponse:
    """Ask whether the action shall be done; yes sends the fields to the same address."""
    request.current_app = model_admin.admin_site.name
    return TemplateResponse(
        request,
        "admin/django_pgqueue/confirm_action.html",
        {
            **model_admin.admin_site.each_context(request),
            "crumbs_are_a_list": CRUMBS_ARE_A_LIST,
            "title": title,
            "opts": model_admin.opts,
            "media": model_admin.media,
            "question": question,
            "items": items,
            "fields": fields,
            "back": request.get_full_path(),
        },
    )
