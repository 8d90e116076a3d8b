"""Create the queue the webhooks wait in: part of the schema, so part of a deployment's migrate."""

from __future__ import annotations

from django.db import migrations

from django_pgqueue.models import Message


def create_queue(apps, schema_editor):
    messages = Message.objects.db_manager(schema_editor.connection.alias)
    messages.create_queue("github", visibility_timeout=30, max_deliveries=20)


def drop_queue(apps, schema_editor):
    Message.objects.db_manager(schema_editor.connection.alias).drop_queue("github")


class Migration(migrations.Migration):
    dependencies = [
        ("inbox", "0001_initial"),
        ("django_pgqueue", "0001_initial"),
    ]

    operations = [migrations.RunPython(create_queue, drop_queue)]
