"""The page between choosing an action that cannot be undone, and doing it."""

from __future__ import annotations

from collections.abc import Iterable

import django
from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
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
    action: str,
    title: str,
    question: str,
    items: Iterable[object],
) -> TemplateResponse:
    """Ask whether the action shall be done; yes sends the same selection again."""
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
            "action": action,
            "question": question,
            "items": items,
            "checkbox": ACTION_CHECKBOX_NAME,
            "selected": request.POST.getlist(ACTION_CHECKBOX_NAME),
            "select_across": request.POST.get("select_across", "0"),
            "back": request.get_full_path(),
        },
    )
