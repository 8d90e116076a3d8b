"""Topics, consumer processes and maintenance: what runs around the queues.

``pgqueue_binding`` says which queues get what is published under which keys. ``pgqueue_process``
has a row and a heartbeat for each running consumer. ``pgqueue_maintenance`` has one row at most: the
process that maintains partitions and retention, and until when.
"""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models

import django_pgqueue.topics


class Migration(migrations.Migration):
    dependencies = [("django_pgqueue", "0001_initial")]

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
                "default_permissions": (),
                "ordering": ("pattern", "queue"),
                "required_db_vendor": "postgresql",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("pattern", "queue"), name="pgqueue_binding_unique"
                    )
                ],
            },
        ),
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
                "default_permissions": ("view",),
                "permissions": (("view_health", "Can view the health of the database"),),
                "required_db_vendor": "postgresql",
            },
        ),
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
                "default_permissions": (),
                "required_db_vendor": "postgresql",
            },
        ),
    ]
