"""The admin's texts that makemessages does not find, since it finds only literals.

They are the names and help texts of the models' fields, and the words for terminal states.

python -m tools.field_texts > django_pgqueue/field_texts.py
"""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["field_texts"]


def field_texts() -> Iterator[str]:
    """Yield the names, help texts, choices and states that the admin translates."""
    from django_pgqueue.admin.labels import MODELS
    from django_pgqueue.types import ENDS

    for model in MODELS:
        for field in model._meta.concrete_fields:
            yield str(field.verbose_name)
            yield str(field.help_text)
            yield from (str(name) for _key, name in field.choices or ())
    for state in ENDS:
        yield state.label
        yield state.end.words if state.end else ""


if __name__ == "__main__":
    import django

    django.setup()
    for text in dict.fromkeys(filter(None, field_texts())):
        print(f"gettext_noop({text!r})")
