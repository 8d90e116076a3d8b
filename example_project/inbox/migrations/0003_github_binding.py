"""Bind the queue to every topic under github."""

from __future__ import annotations

from typing import Any

from django.db import migrations


def bind(apps: Any, schema_editor: Any) -> None:
    alias = schema_editor.connection.alias
    github = apps.get_model("django_pgqueue", "Queue")._base_manager.using(alias).get(name="github")
    bindings = apps.get_model("django_pgqueue", "Binding").objects.using(alias)
    bindings.get_or_create(pattern="github.#", queue=github)


def unbind(apps: Any, schema_editor: Any) -> None:
    bindings = apps.get_model("django_pgqueue", "Binding").objects
    bindings = bindings.using(schema_editor.connection.alias)
    bindings.filter(pattern="github.#", queue__name="github").delete()


class Migration(migrations.Migration):
    dependencies = [
        ("inbox", "0002_github_queue"),
        ("django_pgqueue", "0002_topics_processes_maintenance"),
    ]

    operations = [migrations.RunPython(bind, unbind)]
