"""Batches: messages of a queue, and a callback that is sent when all of them have ended."""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models

from django_pgqueue.ddl import run_sql

NOW = models.Func(function="statement_timestamp", output_field=models.DateTimeField())


class Migration(migrations.Migration):
    dependencies = [
        ("django_pgqueue", "0007_flows"),
    ]

    operations = [
        migrations.CreateModel(
            name="Batch",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("name", models.TextField(blank=True, default="")),
                (
                    "then_queue",
                    models.TextField(
                        default="", help_text="The queue of the callback. Empty: no callback."
                    ),
                ),
                ("callback", models.JSONField(null=True)),
                (
                    "callback_id",
                    models.BigIntegerField(
                        help_text="The message that was sent as the callback.", null=True
                    ),
                ),
                (
                    "members",
                    models.BigIntegerField(
                        default=0, help_text="Messages that were sent in the batch."
                    ),
                ),
                (
                    "passed",
                    models.BigIntegerField(
                        default=0,
                        help_text="The member that counts have reached. Some before it may be left.",
                    ),
                ),
                ("completed", models.BigIntegerField(default=0)),
                ("failed", models.BigIntegerField(default=0)),
                ("dead_lettered", models.BigIntegerField(default=0)),
                ("cancelled", models.BigIntegerField(default=0)),
                ("expired", models.BigIntegerField(default=0)),
                ("replaced", models.BigIntegerField(default=0)),
                ("deleted", models.BigIntegerField(default=0)),
                ("created_at", models.DateTimeField(db_default=NOW)),
                (
                    "open_until",
                    models.DateTimeField(
                        help_text="When it is sealed, if nothing has sealed it.", null=True
                    ),
                ),
                (
                    "sealed_at",
                    models.DateTimeField(help_text="Since when no member can be added.", null=True),
                ),
                ("cancelled_at", models.DateTimeField(null=True)),
                (
                    "abandoned",
                    models.BooleanField(
                        default=False, help_text="Whether its time ran out before it was sealed."
                    ),
                ),
                ("done_at", models.DateTimeField(null=True)),
                ("looked_at", models.DateTimeField(null=True)),
                (
                    "error",
                    models.TextField(
                        default="",
                        help_text="Why the callback could not be sent. It is tried again.",
                    ),
                ),
                (
                    "queue",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="batches",
                        to="django_pgqueue.queue",
                    ),
                ),
            ],
            options={
                "verbose_name": "batch",
                "verbose_name_plural": "batches",
                "db_table": "pgqueue_batch",
                "ordering": ("-id",),
                "default_permissions": ("view", "change"),
                "required_db_vendor": "postgresql",
                "indexes": [
                    models.Index(
                        condition=models.Q(("done_at", None)),
                        fields=["queue", "created_at"],
                        name="pgqueue_batch_open",
                    ),
                    models.Index(fields=["queue", "done_at"], name="pgqueue_batch_done"),
                ],
            },
        ),
        migrations.CreateModel(
            name="BatchPart",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "batch",
                        "first",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                (
                    "first",
                    models.BigIntegerField(
                        help_text="How many members were sent before those of this part."
                    ),
                ),
                ("ids", models.JSONField()),
                (
                    "batch",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="parts",
                        to="django_pgqueue.batch",
                    ),
                ),
            ],
            options={
                "db_table": "pgqueue_batch_part",
                "default_permissions": (),
                "required_db_vendor": "postgresql",
            },
        ),
        run_sql.run("batches"),
        run_sql.extend_rights("pgqueue_batch", "pgqueue_batch_part"),
    ]
