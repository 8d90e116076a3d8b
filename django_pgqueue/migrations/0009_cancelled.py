"""Messages that were called off."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("django_pgqueue", "0008_schedules"),
    ]

    operations = [
        migrations.AlterField(
            model_name="archivedmessage",
            name="state",
            field=models.TextField(
                choices=[
                    ("COMPLETED", "Completed"),
                    ("FAILED", "Failed"),
                    ("CANCELLED", "Cancelled"),
                ]
            ),
        ),
    ]
