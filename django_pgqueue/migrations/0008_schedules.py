"""Messages that are sent at set times."""

from __future__ import annotations

import django.core.serializers.json
import django.core.validators
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("django_pgqueue", "0007_attempts"),
    ]

    operations = [
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
                        help_text="In place of cron: the time between two messages.",
                        null=True,
                    ),
                ),
                ("time_zone", models.TextField(default="UTC", help_text="Of the cron expression.")),
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
                    models.BooleanField(default=False, help_text="Nothing is sent meanwhile."),
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
                    "declared",
                    models.JSONField(
                        editable=False, help_text="What the code says, if it does.", null=True
                    ),
                ),
                ("next_run_at", models.DateTimeField(editable=False)),
                (
                    "last_run_at",
                    models.DateTimeField(
                        editable=False,
                        help_text="The last tick that a message was sent for.",
                        null=True,
                    ),
                ),
                ("error", models.TextField(blank=True, default="", editable=False)),
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
    ]
