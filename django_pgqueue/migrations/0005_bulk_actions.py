"""The work of operators: actions on many messages, and the audit log.

``pgqueue_bulk_action`` has a row for each,
``pgqueue_bulk_action_part`` the ids of its steps until they are done. A role sees and writes the
rows of its queues only. ``pgqueue_audit`` has an entry for each operation: ``audit.sql`` writes it.
"""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models

from django_pgqueue.ddl import run_sql

ROLE = models.Func(template="CURRENT_USER", output_field=models.TextField())
NOW = models.Func(function="statement_timestamp", output_field=models.DateTimeField())


class Migration(migrations.Migration):
    dependencies = [("django_pgqueue", "0004_attempts_and_schedules")]

    operations = [
        migrations.CreateModel(
            name="BulkAction",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "kind",
                    models.TextField(
                        choices=[
                            ("readable", "Make readable"),
                            ("redrive", "Redrive"),
                            ("cancel", "Cancel"),
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
                        default="", help_text="The queue to send the messages to. Empty: their own."
                    ),
                ),
                (
                    "rate",
                    models.FloatField(help_text="Maximum number of messages a second.", null=True),
                ),
                (
                    "in_flight",
                    models.BooleanField(
                        default=False, help_text="Whether to act on leased messages, too."
                    ),
                ),
                (
                    "question",
                    models.UUIDField(
                        help_text="The confirmation page. Its answer is accepted once.", null=True
                    ),
                ),
                (
                    "filter",
                    models.JSONField(
                        default=dict, help_text="The filter of the list from which it was started."
                    ),
                ),
                (
                    "user_id",
                    models.TextField(default="", help_text="The key of the user who started it."),
                ),
                ("username", models.TextField(default="")),
                (
                    "queue_name",
                    models.TextField(
                        default="", help_text="The queue's name, kept after the queue is dropped."
                    ),
                ),
                ("highest_id", models.BigIntegerField()),
                ("count", models.IntegerField()),
                ("done", models.IntegerField(default=0)),
                (
                    "passed",
                    models.IntegerField(
                        default=0,
                        help_text="Number of messages that were skipped: gone by then, or in flight.",
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
                (
                    "error",
                    models.TextField(default="", help_text="Why it failed, or why it is waiting."),
                ),
                ("created_at", models.DateTimeField(db_default=NOW)),
                ("stepped_at", models.DateTimeField(null=True)),
                ("finished_at", models.DateTimeField(null=True)),
                (
                    "step_size",
                    models.IntegerField(
                        default=1000, help_text="Maximum number of messages in the next step."
                    ),
                ),
                ("paced_until", models.DateTimeField(null=True)),
                (
                    "entry",
                    models.BigIntegerField(null=True, help_text="Its entry in the audit log."),
                ),
                (
                    "queue",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="bulk_actions",
                        to="django_pgqueue.queue",
                    ),
                ),
            ],
            options={
                "verbose_name": "bulk action",
                "verbose_name_plural": "bulk actions",
                "db_table": "pgqueue_bulk_action",
                "ordering": ("-id",),
                "default_permissions": ("view",),
                "required_db_vendor": "postgresql",
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "kind__in",
                                [
                                    "readable",
                                    "redrive",
                                    "cancel",
                                    "delete",
                                    "purge",
                                    "replay",
                                    "discard",
                                ],
                            )
                        ),
                        name="pgqueue_bulk_action_kind",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("state__in", ["running", "stopped", "done", "failed"])),
                        name="pgqueue_bulk_action_state",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("rate__gte", 1e-05), ("rate__lte", 1000000000.0)),
                        name="pgqueue_bulk_action_rate",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("count__gte", 0), ("count__lte", 2147483647)),
                        name="pgqueue_bulk_action_count",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("done__gte", 0), ("done__lte", 2147483647)),
                        name="pgqueue_bulk_action_done",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("passed__gte", 0), ("passed__lte", 2147483647)),
                        name="pgqueue_bulk_action_passed",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("step_size__gte", 1), ("step_size__lte", 1000)),
                        name="pgqueue_bulk_action_step_size",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="BulkActionPart",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("ids", models.JSONField()),
                (
                    "bulk_action",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="parts",
                        to="django_pgqueue.bulkaction",
                    ),
                ),
            ],
            options={
                "db_table": "pgqueue_bulk_action_part",
                "default_permissions": (),
                "required_db_vendor": "postgresql",
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Func(
                            models.F("ids"),
                            output_field=models.BooleanField(),
                            template="jsonb_typeof(%(expressions)s) = 'array' AND NOT jsonb_path_exists(%(expressions)s, 'strict $[*] ? (@.type() != \"number\")', '{}', true)",
                        ),
                        name="pgqueue_bulk_action_part_ids",
                    )
                ],
            },
        ),
        migrations.AddIndex(
            model_name="bulkaction",
            index=models.Index(
                condition=models.Q(("state", "running")),
                fields=["id"],
                name="pgqueue_bulk_action_running",
            ),
        ),
        migrations.AddConstraint(
            model_name="bulkaction",
            constraint=models.UniqueConstraint(
                fields=("question", "queue", "kind"), name="pgqueue_bulk_action_question"
            ),
        ),
        run_sql.extend_rights("pgqueue_bulk_action", "pgqueue_bulk_action_part"),
        run_sql.run("policies"),
        migrations.CreateModel(
            name="AuditEntry",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("at", models.DateTimeField(db_default=NOW)),
                ("operation", models.TextField()),
                ("queue_id", models.IntegerField(null=True)),
                ("queue_name", models.TextField(default="")),
                ("arguments", models.JSONField(default=dict)),
                ("count", models.BigIntegerField(null=True)),
                ("ended_at", models.DateTimeField(null=True)),
                ("who", models.TextField()),
                ("place", models.TextField()),
                ("program", models.TextField(default="")),
                ("host", models.TextField(default="")),
                ("role", models.TextField(db_default=ROLE)),
            ],
            options={
                "verbose_name": "audit entry",
                "verbose_name_plural": "audit log",
                "db_table": "pgqueue_audit",
                "ordering": ("-id",),
                "default_permissions": ("view",),
                "required_db_vendor": "postgresql",
                "indexes": [
                    models.Index(fields=["at"], name="pgqueue_audit_at"),
                    models.Index(fields=["queue_id", "-id"], name="pgqueue_audit_queue"),
                ],
            },
        ),
        run_sql.run("audit"),
        run_sql.extend_rights("pgqueue_audit"),
    ]
