"""Why each attempt failed."""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("django_pgqueue", "0005_caretaker"),
    ]

    operations = [
        migrations.CreateModel(
            name="Attempt",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("message_id", models.BigIntegerField()),
                (
                    "attempt",
                    models.IntegerField(help_text="Which run of the handler it was, from 1."),
                ),
                (
                    "at",
                    models.DateTimeField(
                        db_default=models.Func(
                            function="statement_timestamp", output_field=models.DateTimeField()
                        )
                    ),
                ),
                (
                    "process_id",
                    models.IntegerField(
                        help_text="The consumer process, if one ran it.", null=True
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
                "required_db_vendor": "postgresql",
                "indexes": [
                    models.Index(fields=["message_id"], name="pgqueue_attempt_message"),
                    models.Index(fields=["queue", "at", "id"], name="pgqueue_attempt_at"),
                ],
            },
        ),
    ]
