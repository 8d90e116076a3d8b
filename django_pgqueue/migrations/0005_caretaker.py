"""Which consumer process does maintenance: one at a time, by a lease."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("django_pgqueue", "0004_binding")]

    operations = [
        migrations.CreateModel(
            name="MaintenanceLease",
            fields=[
                ("id", models.SmallIntegerField(default=1, primary_key=True, serialize=False)),
                ("token", models.UUIDField()),
                ("process", models.TextField()),
                (
                    "since",
                    models.DateTimeField(
                        db_default=models.Func(
                            function="statement_timestamp", output_field=models.DateTimeField()
                        )
                    ),
                ),
                ("until", models.DateTimeField()),
            ],
            options={
                "db_table": "pgqueue_maintenance",
                "required_db_vendor": "postgresql",
            },
        ),
    ]
