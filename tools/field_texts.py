"""The names and help texts of the models' fields, which makemessages finds only as literals.

python -m tools.field_texts > django_pgqueue/field_texts.py
"""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["field_texts"]


def field_texts() -> Iterator[str]:
    """Yield the names, help texts and choices that the admin translates."""
    from django_pgqueue.admin.labels import MODELS

    for model in MODELS:
        for field in model._meta.concrete_fields:
            yield str(field.verbose_name)
            yield str(field.help_text)
            yield from (str(name) for _key, name in field.choices or ())


if __name__ == "__main__":
    import django

    django.setup()
    for text in dict.fromkeys(filter(None, field_texts())):
        print(f"gettext_noop({text!r})")
