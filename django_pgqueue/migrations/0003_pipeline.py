"""The pipeline to a lake, and roll-ups.

``pgqueue_lake`` and ``pgqueue_export_run`` record what was exported where, ``pgqueue_rollup`` and
``pgqueue_rollup_run`` the history of queues in buckets of time. ``pgqueue_purge_mark`` tells readers
of the archive what retention removed. ``pgqueue_staging`` and ``pgqueue_spark_txn`` make a Spark
write exactly-once.
"""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models

from django_pgqueue.ddl import run_sql

NOW = models.Func(function="statement_timestamp", output_field=models.DateTimeField())


class Migration(migrations.Migration):
    dependencies = [("django_pgqueue", "0002_topics_processes_maintenance")]

    operations = [
        migrations.CreateModel(
            name="Lake",
            fields=[
                ("id", models.AutoField(primary_key=True, serialize=False)),
                ("path", models.TextField(editable=False, unique=True)),
                (
                    "queues",
                    models.JSONField(
                        blank=True,
                        default=list,
                        help_text="Names of the exported queues. Empty: all.",
                    ),
                ),
                (
                    "holds_retention",
                    models.BooleanField(
                        default=False,
                        help_text="Retention keeps archived messages until they are exported here.",
                    ),
                ),
                (
                    "exported_below",
                    models.BigIntegerField(
                        default=0,
                        editable=False,
                        help_text="Messages archived by transactions before this one are exported.",
                    ),
                ),
                (
                    "exported_at",
                    models.DateTimeField(
                        editable=False,
                        help_text="Messages archived before this time are exported. Empty until a run was published.",
                        null=True,
                    ),
                ),
                (
                    "system",
                    models.TextField(
                        default="",
                        editable=False,
                        help_text="The identifier of the server that assigned the transaction ids.",
                    ),
                ),
                (
                    "iceberg",
                    models.TextField(
                        default="",
                        editable=False,
                        help_text="The Iceberg table, if the lake is one.",
                    ),
                ),
                (
                    "body_schemas",
                    models.JSONField(
                        default=dict,
                        editable=False,
                        help_text="For each queue, the fields of bodies that have columns of their own.",
                    ),
                ),
                ("created_at", models.DateTimeField(db_default=NOW, editable=False)),
            ],
            options={
                "verbose_name": "lake",
                "verbose_name_plural": "lakes",
                "db_table": "pgqueue_lake",
                "default_permissions": ("view", "change"),
                "ordering": ("path",),
                "required_db_vendor": "postgresql",
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Func(
                            models.F("queues"),
                            output_field=models.BooleanField(),
                            template="jsonb_typeof(%(expressions)s) = 'array' AND NOT jsonb_path_exists(%(expressions)s, 'strict $[*] ? (@.type() != \"string\")', '{}', true)",
                        ),
                        name="pgqueue_lake_queues",
                    )
                ],
            },
        ),
        migrations.SeparateDatabaseAndState(
            database_operations=[run_sql.run("pipeline")],
            state_operations=[
                migrations.CreateModel(
                    name="PurgeMark",
                    fields=[
                        (
                            "queue",
                            models.OneToOneField(
                                db_constraint=False,
                                on_delete=django.db.models.deletion.DO_NOTHING,
                                primary_key=True,
                                related_name="purge_mark",
                                serialize=False,
                                to="django_pgqueue.queue",
                            ),
                        ),
                        ("below_xid", models.BigIntegerField()),
                        (
                            "dropped",
                            models.TextField(
                                default="", help_text="The queue's name, once it is dropped."
                            ),
                        ),
                        ("purged_at", models.DateTimeField(db_default=NOW)),
                    ],
                    options={
                        "db_table": "pgqueue_purge_mark",
                        "default_permissions": (),
                        "required_db_vendor": "postgresql",
                    },
                )
            ],
        ),
        migrations.CreateModel(
            name="RollupRun",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("seconds", models.IntegerField()),
                ("from_at", models.DateTimeField()),
                ("to_at", models.DateTimeField()),
                (
                    "below_xid",
                    models.BigIntegerField(
                        help_text="Messages archived by transactions before this one are counted."
                    ),
                ),
                ("buckets", models.IntegerField()),
                ("removed", models.IntegerField(default=0)),
                (
                    "system",
                    models.TextField(
                        default="",
                        help_text="The identifier of the server that assigned the transaction ids.",
                    ),
                ),
                ("started_at", models.DateTimeField()),
                ("finished_at", models.DateTimeField(db_default=NOW)),
            ],
            options={
                "verbose_name": "roll-up run",
                "verbose_name_plural": "roll-up runs",
                "db_table": "pgqueue_rollup_run",
                "default_permissions": ("view",),
                "ordering": ("-id",),
                "required_db_vendor": "postgresql",
            },
        ),
        migrations.CreateModel(
            name="Rollup",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("queue_name", models.TextField()),
                ("seconds", models.IntegerField(help_text="The length of the span.")),
                ("bucket", models.DateTimeField(help_text="The start of the span.")),
                ("sent", models.BigIntegerField(default=0)),
                ("completed", models.BigIntegerField(default=0)),
                ("failed", models.BigIntegerField(default=0)),
                (
                    "retried",
                    models.BigIntegerField(
                        default=0,
                        help_text="Number of failed attempts that were retried, of messages that ended.",
                    ),
                ),
                ("dead_lettered", models.BigIntegerField(default=0)),
                (
                    "backlog",
                    models.BigIntegerField(
                        default=0, help_text="Messages in the queue at the end of the span."
                    ),
                ),
                (
                    "busy",
                    models.FloatField(
                        default=0,
                        help_text="The sum of run times. Divided by the span's length: the number of busy workers.",
                    ),
                ),
                ("wait_p50", models.FloatField(null=True)),
                ("wait_p95", models.FloatField(null=True)),
                ("wait_p99", models.FloatField(null=True)),
                ("run_p50", models.FloatField(null=True)),
                ("run_p95", models.FloatField(null=True)),
                ("run_p99", models.FloatField(null=True)),
                ("waits", models.JSONField(default=dict)),
                ("runs", models.JSONField(default=dict)),
                (
                    "groups",
                    models.BigIntegerField(
                        default=0, help_text="Number of FIFO groups with messages that ended."
                    ),
                ),
                (
                    "top_group",
                    models.JSONField(help_text="The largest group and its count.", null=True),
                ),
                (
                    "poison",
                    models.JSONField(
                        default=list, help_text="The messages with the most deliveries."
                    ),
                ),
                ("top_errors", models.JSONField(default=list)),
                ("computed_at", models.DateTimeField(db_default=NOW)),
            ],
            options={
                "verbose_name": "roll-up",
                "verbose_name_plural": "roll-ups",
                "db_table": "pgqueue_rollup",
                "default_permissions": ("view",),
                "required_db_vendor": "postgresql",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("queue_name", "seconds", "bucket"), name="pgqueue_rollup_unique"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("seconds__gte", 1), ("seconds__lte", 2147483647)),
                        name="pgqueue_rollup_seconds",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ExportRun",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "kind",
                    models.TextField(
                        choices=[("EXPORT", "Export"), ("COMPACT", "Compact")], default="EXPORT"
                    ),
                ),
                (
                    "state",
                    models.TextField(
                        choices=[
                            ("RUNNING", "Running"),
                            ("PUBLISHING", "Publishing"),
                            ("FAILED", "Failed"),
                            ("DONE", "Done"),
                        ],
                        default="RUNNING",
                    ),
                ),
                ("from_xid", models.BigIntegerField(default=0)),
                ("to_xid", models.BigIntegerField(default=0)),
                ("rows", models.BigIntegerField(default=0)),
                ("files", models.IntegerField(default=0)),
                ("bytes", models.BigIntegerField(default=0)),
                ("manifest", models.JSONField(default=dict)),
                ("checksums", models.JSONField(null=True)),
                ("verified_at", models.DateTimeField(null=True)),
                (
                    "error",
                    models.TextField(
                        blank=True, default="", help_text="The error and its traceback."
                    ),
                ),
                ("started_at", models.DateTimeField(db_default=NOW)),
                ("finished_at", models.DateTimeField(null=True)),
                (
                    "resumed_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="django_pgqueue.exportrun",
                    ),
                ),
                (
                    "lake",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="runs",
                        to="django_pgqueue.lake",
                    ),
                ),
            ],
            options={
                "verbose_name": "export run",
                "verbose_name_plural": "export runs",
                "db_table": "pgqueue_export_run",
                "default_permissions": ("view",),
                "ordering": ("-id",),
                "required_db_vendor": "postgresql",
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("state__in", ("RUNNING", "PUBLISHING"))),
                        fields=("lake",),
                        name="pgqueue_export_run_unfinished",
                    )
                ],
            },
        ),
        run_sql.RunPostgreSQL(
            "ALTER TABLE pgqueue_export_run ADD FOREIGN KEY (lake_id) REFERENCES pgqueue_lake "
            "ON DELETE CASCADE",
            migrations.RunSQL.noop,
        ),
    ]
