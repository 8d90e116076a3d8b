"""Translations of field names and help texts. The models have only English texts.

A translated name in a model would also end up in its migrations.
"""

from __future__ import annotations

from django.utils.translation import gettext_lazy

from django_pgqueue.models import (
    Binding,
    BulkAction,
    ExportRun,
    Lake,
    Queue,
    Rollup,
    RollupRun,
    Schedule,
)

#: The models whose fields are shown in Django's lists and forms.
MODELS = (Binding, BulkAction, ExportRun, Lake, Queue, Rollup, RollupRun, Schedule)


def translate_fields() -> None:
    """Replace the fields' names, help texts and choices with lazy translations."""
    for model in MODELS:
        for field in model._meta.concrete_fields:
            field.verbose_name = gettext_lazy(str(field.verbose_name))
            if field.help_text:
                field.help_text = gettext_lazy(str(field.help_text))
            if field.choices:
                field.choices = [(key, gettext_lazy(str(name))) for key, name in field.choices]
