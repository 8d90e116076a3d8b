"""Errors of attempts, schedules, and cancelled messages.

``pgqueue_attempt`` has a row for each failed attempt, ``pgqueue_schedule`` for each message that is
sent at set times.
"""

from __future__ import annotations

import django.core.serializers.json
import django.core.validators
import django.db.models.deletion
from django.db import migrations, models

from django_pgqueue.ddl import run_sql

NOW = models.Func(function="statement_timestamp", output_field=models.DateTimeField())


class Migration(migrations.Migration):
    dependencies = [("django_pgqueue", "0003_pipeline")]

    operations = [
        migrations.CreateModel(
            name="Attempt",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("message_id", models.BigIntegerField()),
                (
                    "attempt",
                    models.IntegerField(help_text="The number of the handler's run, from 1."),
                ),
                ("at", models.DateTimeField(db_default=NOW)),
                (
                    "process_id",
                    models.IntegerField(
                        help_text="The consumer process that ran it, if any.", null=True
                    ),
                ),
                ("error_class", models.TextField()),
                ("message", models.TextField()),
                ("traceback", models.TextField()),
                (
                    "queue",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="attempts",
                        to="django_pgqueue.queue",
                    ),
                ),
            ],
            options={
                "db_table": "pgqueue_attempt",
                "default_permissions": (),
                "required_db_vendor": "postgresql",
                "indexes": [
                    models.Index(fields=["message_id"], name="pgqueue_attempt_message"),
                    models.Index(fields=["queue", "at", "id"], name="pgqueue_attempt_at"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Schedule",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("name", models.TextField(unique=True)),
                (
                    "cron",
                    models.TextField(
                        blank=True,
                        default="",
                        help_text="Minute, hour, day of month, month, day of week, as 0 4 * * *.",
                    ),
                ),
                (
                    "interval",
                    models.DurationField(
                        blank=True,
                        help_text="The time between two messages, instead of cron.",
                        null=True,
                    ),
                ),
                (
                    "time_zone",
                    models.TextField(
                        default="UTC", help_text="The time zone of the cron expression."
                    ),
                ),
                (
                    "missed",
                    models.TextField(
                        choices=[
                            ("once", "Send one message for all of them"),
                            ("all", "Send a message for each"),
                            ("skip", "Send none that is more than a minute late"),
                        ],
                        default="once",
                    ),
                ),
                (
                    "paused",
                    models.BooleanField(
                        default=False, help_text="While paused, the schedule sends nothing."
                    ),
                ),
                (
                    "body",
                    models.JSONField(
                        blank=True,
                        encoder=django.core.serializers.json.DjangoJSONEncoder,
                        null=True,
                    ),
                ),
                (
                    "priority",
                    models.SmallIntegerField(
                        default=0,
                        validators=[
                            django.core.validators.MinValueValidator(-100),
                            django.core.validators.MaxValueValidator(100),
                        ],
                    ),
                ),
                (
                    "expires",
                    models.DurationField(
                        blank=True,
                        help_text="How long after its send a message expires. Empty: never.",
                        null=True,
                    ),
                ),
                (
                    "group_key",
                    models.TextField(
                        blank=True, default="", help_text="The group of the messages. Empty: none."
                    ),
                ),
                (
                    "unique_key",
                    models.TextField(
                        blank=True,
                        default="",
                        help_text="While a message holds this key, no second one is sent. Empty: every tick sends one.",
                    ),
                ),
                (
                    "until",
                    models.TextField(
                        blank=True,
                        choices=[("started", "It has started"), ("done", "It is done")],
                        default="",
                        help_text="How long a message holds the key. Empty: the queue's unique window.",
                    ),
                ),
                (
                    "declared",
                    models.JSONField(
                        editable=False,
                        help_text="The declaration in the code, if there is one.",
                        null=True,
                    ),
                ),
                (
                    "ended_at",
                    models.DateTimeField(
                        editable=False,
                        help_text="Since when no running consumer declares it. It sends nothing.",
                        null=True,
                    ),
                ),
                ("next_run_at", models.DateTimeField(editable=False)),
                (
                    "last_run_at",
                    models.DateTimeField(
                        editable=False,
                        help_text="The last tick for which a message was sent.",
                        null=True,
                    ),
                ),
                ("error", models.TextField(blank=True, default="", editable=False)),
                (
                    "ticks",
                    models.JSONField(
                        default=list,
                        editable=False,
                        help_text="The latest ticks, the oldest first.",
                    ),
                ),
                (
                    "queue",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="schedules",
                        to="django_pgqueue.queue",
                    ),
                ),
            ],
            options={
                "verbose_name": "schedule",
                "verbose_name_plural": "schedules",
                "db_table": "pgqueue_schedule",
                "ordering": ("name",),
                "required_db_vendor": "postgresql",
                "indexes": [
                    models.Index(
                        condition=models.Q(("paused", False)),
                        fields=["next_run_at"],
                        name="pgqueue_schedule_next",
                    )
                ],
            },
        ),
        run_sql.extend_rights("pgqueue_attempt", "pgqueue_schedule"),
    ]
