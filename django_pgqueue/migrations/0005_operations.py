"""Operations on many messages: ``pgqueue_operation`` has a row for each, ``pgqueue_operation_part``
the ids of its steps until they are done."""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models

from django_pgqueue.ddl import statements


class Migration(migrations.Migration):
    dependencies = [
        ("django_pgqueue", "0004_attempts_and_schedules"),
    ]

    operations = [
        migrations.CreateModel(
            name="Operation",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "kind",
                    models.TextField(
                        choices=[
                            ("readable", "Make readable"),
                            ("redrive", "Redrive"),
                            ("archive", "Archive"),
                            ("delete", "Delete"),
                            ("purge", "Purge"),
                            ("replay", "Send again"),
                            ("discard", "Discard"),
                        ]
                    ),
                ),
                (
                    "target",
                    models.TextField(
                        default="", help_text="The queue to send them to, if not their own."
                    ),
                ),
                ("rate", models.FloatField(help_text="The most messages a second.", null=True)),
                (
                    "in_flight",
                    models.BooleanField(
                        default=False, help_text="Also those that a consumer holds."
                    ),
                ),
                (
                    "filter",
                    models.JSONField(default=dict, help_text="The list that it was asked for."),
                ),
                (
                    "user_id",
                    models.TextField(default="", help_text="The key of the user who asked for it."),
                ),
                ("username", models.TextField(default="")),
                ("highest_id", models.BigIntegerField()),
                ("count", models.IntegerField()),
                ("done", models.IntegerField(default=0)),
                (
                    "passed",
                    models.IntegerField(
                        default=0, help_text="Left alone: gone meanwhile, or in flight."
                    ),
                ),
                (
                    "state",
                    models.TextField(
                        choices=[
                            ("running", "running"),
                            ("stopped", "stopped"),
                            ("done", "done"),
                            ("failed", "failed"),
                        ],
                        default="running",
                    ),
                ),
                ("error", models.TextField(default="")),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=models.Func(
                            function="statement_timestamp", output_field=models.DateTimeField()
                        )
                    ),
                ),
                ("stepped_at", models.DateTimeField(null=True)),
                ("finished_at", models.DateTimeField(null=True)),
                ("paced_until", models.DateTimeField(null=True)),
                (
                    "queue",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="operations",
                        to="django_pgqueue.queue",
                    ),
                ),
            ],
            options={
                "verbose_name": "operation",
                "verbose_name_plural": "operations",
                "db_table": "pgqueue_operation",
                "ordering": ("-id",),
                "default_permissions": ("view",),
                "required_db_vendor": "postgresql",
            },
        ),
        migrations.CreateModel(
            name="OperationPart",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("ids", models.JSONField()),
                (
                    "operation",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="parts",
                        to="django_pgqueue.operation",
                    ),
                ),
            ],
            options={
                "db_table": "pgqueue_operation_part",
                "default_permissions": (),
                "required_db_vendor": "postgresql",
            },
        ),
        migrations.AddIndex(
            model_name="operation",
            index=models.Index(
                condition=models.Q(("state", "running")),
                fields=["id"],
                name="pgqueue_operation_running",
            ),
        ),
        statements.extend_rights("pgqueue_operation", "pgqueue_operation_part"),
    ]
