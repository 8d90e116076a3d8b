"""Which queues get what is published under which keys."""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models

import django_pgqueue.topics


class Migration(migrations.Migration):
    dependencies = [("django_pgqueue", "0003_pipeline")]

    operations = [
        migrations.CreateModel(
            name="Binding",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "pattern",
                    models.CharField(
                        help_text="Words joined by dots; * stands for one word, # for any number of them.",
                        max_length=255,
                        validators=[django_pgqueue.topics.validate_topic_pattern],
                    ),
                ),
                (
                    "bound_at",
                    models.DateTimeField(
                        db_default=models.Func(
                            function="statement_timestamp", output_field=models.DateTimeField()
                        ),
                        editable=False,
                    ),
                ),
                (
                    "queue",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="bindings",
                        to="django_pgqueue.queue",
                    ),
                ),
            ],
            options={
                "db_table": "pgqueue_binding",
                "ordering": ("pattern", "queue"),
                "required_db_vendor": "postgresql",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("pattern", "queue"), name="pgqueue_binding_unique"
                    )
                ],
            },
        ),
    ]
