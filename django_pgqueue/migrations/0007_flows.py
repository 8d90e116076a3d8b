"""Steps, notes and waits: what a handler keeps for the next delivery of its message."""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models

from django_pgqueue.ddl import run_sql

NOW = models.Func(function="statement_timestamp", output_field=models.DateTimeField())


class Migration(migrations.Migration):
    dependencies = [
        ("django_pgqueue", "0006_subscriptions"),
    ]

    operations = [
        migrations.CreateModel(
            name="Note",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "queue",
                        "message_id",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("message_id", models.BigIntegerField()),
                ("at", models.DateTimeField(db_default=NOW)),
                ("value", models.JSONField(null=True)),
                (
                    "queue",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="notes",
                        to="django_pgqueue.queue",
                    ),
                ),
            ],
            options={
                "db_table": "pgqueue_note",
                "default_permissions": (),
                "required_db_vendor": "postgresql",
            },
        ),
        migrations.CreateModel(
            name="Step",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "queue",
                        "message_id",
                        "name",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("message_id", models.BigIntegerField()),
                ("at", models.DateTimeField(db_default=NOW)),
                ("name", models.TextField()),
                ("value", models.JSONField(null=True)),
                (
                    "queue",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="steps",
                        to="django_pgqueue.queue",
                    ),
                ),
            ],
            options={
                "db_table": "pgqueue_step",
                "default_permissions": (),
                "required_db_vendor": "postgresql",
            },
        ),
        migrations.CreateModel(
            name="PendingWait",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "queue",
                        "message_id",
                        "name",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("message_id", models.BigIntegerField()),
                (
                    "until",
                    models.DateTimeField(help_text="When the handler goes on without a signal."),
                ),
                ("at", models.DateTimeField(db_default=NOW)),
                (
                    "name",
                    models.TextField(help_text="The name of the step that the outcome becomes."),
                ),
                ("key", models.TextField(null=True)),
                (
                    "queue",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="waits",
                        to="django_pgqueue.queue",
                    ),
                ),
            ],
            options={
                "db_table": "pgqueue_wait",
                "default_permissions": (),
                "required_db_vendor": "postgresql",
                "indexes": [
                    models.Index(
                        condition=models.Q(("key__isnull", False)),
                        fields=["key"],
                        name="pgqueue_wait_key",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="SentSignal",
            fields=[
                ("key", models.TextField(primary_key=True, serialize=False)),
                ("at", models.DateTimeField(db_default=NOW)),
                ("sent_at", models.DateTimeField(null=True)),
                ("keep_until", models.DateTimeField(null=True)),
                ("value", models.JSONField(null=True)),
            ],
            options={
                "db_table": "pgqueue_signal",
                "default_permissions": (),
                "required_db_vendor": "postgresql",
                "indexes": [models.Index(fields=["keep_until"], name="pgqueue_signal_keep_until")],
            },
        ),
        run_sql.run("flows"),
        run_sql.extend_rights("pgqueue_note", "pgqueue_signal", "pgqueue_step", "pgqueue_wait"),
    ]
