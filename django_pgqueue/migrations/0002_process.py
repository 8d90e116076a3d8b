"""Consumer processes, with a heartbeat each."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("django_pgqueue", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="Process",
            fields=[
                ("id", models.AutoField(primary_key=True, serialize=False)),
                ("host", models.TextField()),
                ("pid", models.IntegerField()),
                ("version", models.TextField()),
                ("queues", models.JSONField(default=list)),
                ("working_on", models.JSONField(default=dict)),
                ("stopping", models.BooleanField(default=False)),
                (
                    "started_at",
                    models.DateTimeField(
                        db_default=models.Func(
                            function="statement_timestamp", output_field=models.DateTimeField()
                        )
                    ),
                ),
                (
                    "heartbeat_at",
                    models.DateTimeField(
                        db_default=models.Func(
                            function="statement_timestamp", output_field=models.DateTimeField()
                        )
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "processes",
                "db_table": "pgqueue_process",
                "required_db_vendor": "postgresql",
            },
        ),
    ]
