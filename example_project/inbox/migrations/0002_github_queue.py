"""Create the queue the webhooks wait in: part of the schema, so part of a deployment's migrate."""

from __future__ import annotations

from django.db import migrations

from django_pgqueue.operations import CreateQueue


class Migration(migrations.Migration):
    dependencies = [
        ("inbox", "0001_initial"),
        ("django_pgqueue", "0001_initial"),
    ]

    operations = [CreateQueue("github", visibility_timeout=30, max_deliveries=20)]
