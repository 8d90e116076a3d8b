"""Topics, consumer processes, maintenance and history: what runs around the queues.

``pgqueue_binding`` says which queues get what is published under which keys. ``pgqueue_process``
has a row and a heartbeat for each running consumer. ``pgqueue_maintenance`` has one row at most: the
process that maintains partitions and retention, and until when. ``pgqueue_history`` tells what
happened to each queue in each minute of the last hours, and in each hour before. ``pgqueue_mark``
has what happened outside the queues, such as deploys, ``pgqueue_acknowledgement`` the admin's alerts
that a user knows of.
"""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models

import django_pgqueue.validators

NOW = models.Func(function="statement_timestamp", output_field=models.DateTimeField())


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
                        help_text="Words separated by dots. * matches one word, # any number of words.",
                        max_length=255,
                        validators=[django_pgqueue.validators.validate_topic_pattern],
                    ),
                ),
                ("bound_at", models.DateTimeField(db_default=NOW, editable=False)),
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
                "verbose_name": "topic binding",
                "verbose_name_plural": "topic bindings",
                "db_table": "pgqueue_binding",
                "default_permissions": ("add", "delete", "view"),
                "ordering": ("pattern", "queue"),
                "required_db_vendor": "postgresql",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("pattern", "queue"), name="pgqueue_binding_unique"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "pattern__regex",
                                "^((\\*|#|[A-Za-z0-9_-]+)(\\.(\\*|#|[A-Za-z0-9_-]+))*)$",
                            )
                        ),
                        name="pgqueue_binding_pattern",
                    ),
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
                ("release", models.TextField(db_default="", default="")),
                ("queues", models.JSONField(default=list)),
                ("working_on", models.JSONField(default=dict)),
                (
                    "runs",
                    models.JSONField(
                        default=list, help_text="The runs of handlers, the longest first."
                    ),
                ),
                (
                    "stacks_wanted",
                    models.BooleanField(
                        default=False, help_text="Whether it was asked for the stacks of its runs."
                    ),
                ),
                (
                    "stacks",
                    models.JSONField(
                        help_text="The stacks of its runs when it was last asked for them.",
                        null=True,
                    ),
                ),
                ("stacks_at", models.DateTimeField(null=True)),
                (
                    "schedules",
                    models.JSONField(
                        default=list, help_text="Names of the schedules that its code declares."
                    ),
                ),
                ("stopping", models.BooleanField(default=False)),
                (
                    "quiet",
                    models.BooleanField(
                        default=False, help_text="Whether it was asked to fetch no more messages."
                    ),
                ),
                ("started_at", models.DateTimeField(db_default=NOW)),
                ("heartbeat_at", models.DateTimeField(db_default=NOW)),
                (
                    "gone_at",
                    models.DateTimeField(
                        help_text="When it was found dead: its heartbeats ended, but it had not stopped.",
                        null=True,
                    ),
                ),
                (
                    "given_back",
                    models.IntegerField(
                        default=0, help_text="Number of messages that it held when it died."
                    ),
                ),
            ],
            options={
                "verbose_name": "consumer process",
                "verbose_name_plural": "consumer processes",
                "db_table": "pgqueue_process",
                "default_permissions": ("view",),
                "permissions": (
                    ("view_health", "Can view the health of the database"),
                    ("quiet_process", "Can keep consumer processes from fetching"),
                    ("view_stack", "Can view the stacks of running handlers"),
                ),
                "required_db_vendor": "postgresql",
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Func(
                            models.F("queues"),
                            output_field=models.BooleanField(),
                            template="jsonb_typeof(%(expressions)s) = 'array' AND NOT jsonb_path_exists(%(expressions)s, 'strict $[*] ? (@.type() != \"string\")', '{}', true)",
                        ),
                        name="pgqueue_process_queues",
                    ),
                    models.CheckConstraint(
                        condition=models.Func(
                            models.F("schedules"),
                            output_field=models.BooleanField(),
                            template="jsonb_typeof(%(expressions)s) = 'array' AND NOT jsonb_path_exists(%(expressions)s, 'strict $[*] ? (@.type() != \"string\")', '{}', true)",
                        ),
                        name="pgqueue_process_schedules",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="MaintenanceLease",
            fields=[
                ("id", models.SmallIntegerField(default=1, primary_key=True, serialize=False)),
                ("token", models.UUIDField()),
                ("process", models.TextField()),
                ("since", models.DateTimeField(db_default=NOW)),
                ("until", models.DateTimeField()),
            ],
            options={
                "db_table": "pgqueue_maintenance",
                "default_permissions": (),
                "required_db_vendor": "postgresql",
            },
        ),
        migrations.CreateModel(
            name="History",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "queue_id",
                        "bucket",
                        "seconds",
                        "process_id",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("bucket", models.DateTimeField()),
                ("seconds", models.IntegerField()),
                ("process_id", models.IntegerField(default=0)),
                ("completed", models.BigIntegerField(default=0)),
                ("retried", models.BigIntegerField(default=0)),
                ("failed", models.BigIntegerField(default=0)),
                ("dead_lettered", models.BigIntegerField(default=0)),
                ("expired", models.BigIntegerField(default=0)),
                ("lost", models.BigIntegerField(default=0)),
                ("busy", models.FloatField(default=0)),
                ("waits", models.JSONField(default=dict)),
                ("runs", models.JSONField(default=dict)),
                ("by_process", models.JSONField(null=True)),
                ("sent", models.BigIntegerField(default=0)),
                ("depth", models.BigIntegerField(null=True)),
                ("oldest", models.FloatField(null=True)),
                ("total", models.BigIntegerField(null=True)),
                (
                    "queue",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="history",
                        to="django_pgqueue.queue",
                    ),
                ),
            ],
            options={
                "db_table": "pgqueue_history",
                "default_permissions": (),
                "indexes": [
                    models.Index(fields=["seconds", "bucket"], name="pgqueue_history_bucket")
                ],
                "required_db_vendor": "postgresql",
                "verbose_name_plural": "history",
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("seconds__gte", 1), ("seconds__lte", 2147483647)),
                        name="pgqueue_history_seconds",
                    ),
                    models.CheckConstraint(
                        condition=models.Func(
                            models.F("waits"),
                            output_field=models.BooleanField(),
                            template="jsonb_typeof(%(expressions)s) = 'object' AND NOT jsonb_path_exists(%(expressions)s, 'strict $.* ? (@.type() != \"number\" || @ < 0 || @ > 1000000000000000 || @.floor() != @)', '{}', true)",
                        ),
                        name="pgqueue_history_waits",
                    ),
                    models.CheckConstraint(
                        condition=models.Func(
                            models.F("runs"),
                            output_field=models.BooleanField(),
                            template="jsonb_typeof(%(expressions)s) = 'object' AND NOT jsonb_path_exists(%(expressions)s, 'strict $.* ? (@.type() != \"number\" || @ < 0 || @ > 1000000000000000 || @.floor() != @)', '{}', true)",
                        ),
                        name="pgqueue_history_runs",
                    ),
                    models.CheckConstraint(
                        condition=models.Func(
                            models.F("by_process"),
                            output_field=models.BooleanField(),
                            template="jsonb_typeof(%(expressions)s) = 'object' AND NOT jsonb_path_exists(%(expressions)s, 'strict $.* ? (@.type() != \"number\" || @ < 0 || @ > 1000000000000000 || @.floor() != @)', '{}', true)",
                        ),
                        name="pgqueue_history_by_process",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Mark",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("text", models.TextField()),
                ("at", models.DateTimeField(db_default=NOW)),
                ("is_release", models.BooleanField(default=False)),
            ],
            options={
                "db_table": "pgqueue_mark",
                "default_permissions": (),
                "indexes": [models.Index(fields=["at"], name="pgqueue_mark_at")],
                "required_db_vendor": "postgresql",
            },
        ),
        migrations.CreateModel(
            name="Acknowledgement",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("cause", models.TextField()),
                ("subject", models.TextField()),
                ("causes", models.TextField()),
                ("errors", models.TextField()),
                ("harm", models.BigIntegerField()),
                ("by", models.TextField()),
                ("at", models.DateTimeField(db_default=NOW)),
            ],
            options={
                "db_table": "pgqueue_acknowledgement",
                "default_permissions": (),
                "permissions": (("acknowledge_alert", "Can acknowledge alerts"),),
                "required_db_vendor": "postgresql",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("cause", "subject"), name="pgqueue_acknowledgement_unique"
                    )
                ],
            },
        ),
    ]
