"""Subscriptions: queues that read another queue's messages."""

from __future__ import annotations

import datetime

import django.db.models.deletion
from django.db import migrations, models

import django_pgqueue.validators
from django_pgqueue.ddl import run_sql


class Migration(migrations.Migration):
    dependencies = [
        ("django_pgqueue", "0005_bulk_actions"),
    ]

    operations = [
        migrations.AlterModelOptions(
            name="queue",
            options={
                "verbose_name": "queue",
                "verbose_name_plural": "queues",
                "base_manager_name": "objects",
                "ordering": ("name",),
                "permissions": (
                    ("pause_queue", "Can pause and resume queues"),
                    ("purge_queue", "Can purge queues"),
                    ("seek_queue", "Can move subscriptions"),
                ),
                "required_db_vendor": "postgresql",
            },
        ),
        migrations.AddField(
            model_name="queue",
            name="archive_completed",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="Whether a subscription archives a copy of each message that it has completed.",
            ),
        ),
        migrations.AddField(
            model_name="queue",
            name="keep_for",
            field=models.DurationField(
                blank=True,
                help_text="How long the source keeps messages that this subscription has not read. Empty: as long as needed.",
                null=True,
                validators=[django_pgqueue.validators.validate_span],
            ),
        ),
        migrations.AddField(
            model_name="queue",
            name="source",
            field=models.ForeignKey(
                editable=False,
                help_text="The queue whose messages this one reads, if it is a subscription.",
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="subscriptions",
                to="django_pgqueue.queue",
            ),
        ),
        migrations.AddConstraint(
            model_name="queue",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("keep_for__isnull", True), ("source__isnull", False), _connector="OR"
                ),
                name="pgqueue_queue_keep_for_needs_source",
            ),
        ),
        migrations.AddConstraint(
            model_name="queue",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("archive_completed", False), ("source__isnull", False), _connector="OR"
                ),
                name="pgqueue_queue_archive_completed_needs_source",
            ),
        ),
        migrations.AddConstraint(
            model_name="queue",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("source__isnull", True),
                    models.Q(
                        ("partition_interval__isnull", True),
                        ("unique_window__isnull", True),
                        ("group_limit__isnull", True),
                        ("group_rate__isnull", True),
                        ("group_burst__isnull", True),
                        ("unlogged", False),
                    ),
                    _connector="OR",
                ),
                name="pgqueue_queue_source",
            ),
        ),
        migrations.AddConstraint(
            model_name="queue",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("keep_for__gte", datetime.timedelta(seconds=1)),
                    ("keep_for__lte", datetime.timedelta(days=365000)),
                ),
                name="pgqueue_queue_keep_for",
            ),
        ),
        run_sql.run("subscriptions"),
        run_sql.extend_rights("pgqueue_cursor"),
    ]
