"""Queues and their messages: all that sending, reading and settling need.

``pgqueue_queue`` has the settings of each queue. Its messages are in ``pgqueue_message`` and their
outcomes in ``pgqueue_archive``, both append-only and partitioned by queue. Narrow rows beside them
say where each live message stands: ``pgqueue_ready``, ``pgqueue_deferred``, ``pgqueue_lease``, and
for FIFO groups ``pgqueue_waiting``, ``pgqueue_group`` and ``pgqueue_recheck``. ``pgqueue_claim``
has the unique keys. Triggers make an INSERT a send, and give a group its next head. The SQL is in
``ddl/``, one idea a file.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator

import django.core.serializers.json
import django.core.validators
import django.db.models.deletion
import django.db.models.functions.text
from django.db import migrations, models

import django_pgqueue.types
import django_pgqueue.validators
from django_pgqueue.ddl import run_sql

NOW = models.Func(function="statement_timestamp", output_field=models.DateTimeField())
XID = models.Func(
    template="pg_current_xact_id()::text::bigint", output_field=models.BigIntegerField()
)
SLOTS = [
    django.core.validators.MinValueValidator(1),
    django.core.validators.MaxValueValidator(10000),
]
#: The range of a length of time.
SPAN = (datetime.timedelta(seconds=1), datetime.timedelta(days=365000))


def within(
    table: str, limits: tuple[object, object], *names: str
) -> Iterator[models.CheckConstraint]:
    """Yield the CHECKs that columns are in the range, or NULL."""
    for name in names:
        condition = models.Q((f"{name}__gte", limits[0]), (f"{name}__lte", limits[1]))
        yield models.CheckConstraint(condition=condition, name=f"{table}_{name}")


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Queue",
            fields=[
                ("id", models.AutoField(primary_key=True, serialize=False)),
                (
                    "name",
                    models.CharField(
                        help_text="1 to 63 of these characters: A-Z a-z 0-9 _ . - (unique, ignoring case).",
                        max_length=63,
                        validators=[django_pgqueue.validators.validate_queue_name],
                    ),
                ),
                (
                    "visibility_timeout",
                    models.PositiveIntegerField(
                        default=30,
                        help_text="Seconds for which a message that was read is hidden from other readers.",
                        validators=[django.core.validators.MinValueValidator(1)],
                    ),
                ),
                (
                    "max_deliveries",
                    models.PositiveIntegerField(
                        default=20,
                        help_text="Maximum number of deliveries of a message. Then it is dead-lettered.",
                        validators=[django.core.validators.MinValueValidator(1)],
                    ),
                ),
                (
                    "retention",
                    models.DurationField(
                        blank=True,
                        help_text="How long to keep archived messages. Empty: forever.",
                        null=True,
                        validators=[django_pgqueue.validators.validate_span],
                    ),
                ),
                (
                    "partition_interval",
                    models.DurationField(
                        blank=True,
                        editable=False,
                        help_text="The time span of a partition. Empty: a single partition.",
                        null=True,
                        validators=[django_pgqueue.validators.validate_span],
                    ),
                ),
                (
                    "unique_window",
                    models.DurationField(
                        blank=True,
                        help_text="How long a message holds its unique key. Empty: five minutes.",
                        null=True,
                        validators=[django_pgqueue.validators.validate_span],
                    ),
                ),
                (
                    "limit",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="Maximum number of messages in flight. Empty: no limit.",
                        null=True,
                        validators=SLOTS,
                    ),
                ),
                (
                    "rate",
                    models.CharField(
                        blank=True,
                        help_text="Maximum number of deliveries in a time, such as 100/s or 30/m. Empty: no limit.",
                        max_length=20,
                        null=True,
                        validators=[django_pgqueue.validators.validate_rate],
                    ),
                ),
                (
                    "burst",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="Maximum number of deliveries at once after a pause. Empty: one.",
                        null=True,
                        validators=SLOTS,
                    ),
                ),
                (
                    "group_limit",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="Maximum number of messages of a group in flight. Empty: one, in order.",
                        null=True,
                        validators=SLOTS,
                    ),
                ),
                (
                    "group_rate",
                    models.CharField(
                        blank=True,
                        help_text="Maximum number of deliveries of a group in a time, such as 30/m. Empty: no limit.",
                        max_length=20,
                        null=True,
                        validators=[django_pgqueue.validators.validate_rate],
                    ),
                ),
                (
                    "group_burst",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="Maximum number of deliveries of a group at once after a pause. Empty: one.",
                        null=True,
                        validators=SLOTS,
                    ),
                ),
                (
                    "has_slots",
                    models.BooleanField(
                        default=False,
                        editable=False,
                        help_text="Whether groups have, or had, a limit, a rate or settings of their own.",
                    ),
                ),
                (
                    "age_limit",
                    models.DurationField(
                        blank=True,
                        help_text="How long a message may be readable before there is an alert. Empty: five minutes.",
                        null=True,
                        validators=[django_pgqueue.validators.validate_span],
                    ),
                ),
                (
                    "unlogged",
                    models.BooleanField(
                        default=False,
                        editable=False,
                        help_text="Faster, but a crash of the server empties the queue.",
                    ),
                ),
                (
                    "paused",
                    models.BooleanField(
                        default=False, help_text="Consumers read no messages of this queue."
                    ),
                ),
                (
                    "notify",
                    models.BooleanField(default=True, help_text="A send wakes waiting consumers."),
                ),
                ("created_at", models.DateTimeField(db_default=NOW, editable=False)),
                (
                    "dead_letter_queue",
                    models.ForeignKey(
                        blank=True,
                        help_text="The queue for messages without deliveries left. Empty: they are archived as FAILED.",
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="sources",
                        to="django_pgqueue.queue",
                    ),
                ),
            ],
            options={
                "verbose_name": "queue",
                "verbose_name_plural": "queues",
                "db_table": "pgqueue_queue",
                "base_manager_name": "objects",
                "permissions": (
                    ("pause_queue", "Can pause and resume queues"),
                    ("purge_queue", "Can purge queues"),
                ),
                "ordering": ("name",),
                "required_db_vendor": "postgresql",
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("name__regex", "^([A-Za-z0-9_.-]{1,63})$")),
                        name="pgqueue_queue_name",
                    ),
                    *within(
                        "pgqueue_queue", (1, 2147483647), "visibility_timeout", "max_deliveries"
                    ),
                    *within(
                        "pgqueue_queue",
                        SPAN,
                        "retention",
                        "partition_interval",
                        "unique_window",
                        "age_limit",
                    ),
                    *within(
                        "pgqueue_queue", (1, 10000), "limit", "burst", "group_limit", "group_burst"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("rate__regex", "^([1-9][0-9]{0,8}/[smhd])$")),
                        name="pgqueue_queue_rate",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("group_rate__regex", "^([1-9][0-9]{0,8}/[smhd])$")),
                        name="pgqueue_queue_group_rate",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("burst__isnull", True), ("rate__isnull", False), _connector="OR"
                        ),
                        name="pgqueue_queue_burst_needs_rate",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("group_burst__isnull", True),
                            ("group_rate__isnull", False),
                            _connector="OR",
                        ),
                        name="pgqueue_queue_group_burst_needs_group_rate",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("group_burst__isnull", True),
                            ("group_limit__isnull", True),
                            _connector="OR",
                        ),
                        name="pgqueue_queue_group_burst_or_group_limit",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("dead_letter_queue", models.F("id")), _negated=True),
                        name="pgqueue_queue_dead_letter_queue",
                    ),
                ],
            },
        ),
        migrations.AddConstraint(
            model_name="queue",
            constraint=models.UniqueConstraint(
                django.db.models.functions.text.Lower("name"), name="pgqueue_queue_name_unique"
            ),
        ),
        migrations.CreateModel(
            name="GroupSetting",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("group_key", models.TextField()),
                (
                    "limit",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="Maximum number of messages of this group in flight. Empty: the queue's group limit.",
                        null=True,
                        validators=SLOTS,
                    ),
                ),
                (
                    "rate",
                    models.CharField(
                        blank=True,
                        help_text="Maximum number of deliveries of this group in a time. Empty: the queue's group rate.",
                        max_length=20,
                        null=True,
                        validators=[django_pgqueue.validators.validate_rate],
                    ),
                ),
                (
                    "burst",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="Maximum number of deliveries of this group at once after a pause. Empty: one.",
                        null=True,
                        validators=SLOTS,
                    ),
                ),
                (
                    "paused",
                    models.BooleanField(
                        default=False, help_text="Consumers read no messages of this group."
                    ),
                ),
                (
                    "queue",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="group_settings",
                        to="django_pgqueue.queue",
                    ),
                ),
            ],
            options={
                "verbose_name": "group's settings",
                "verbose_name_plural": "groups' settings",
                "db_table": "pgqueue_group_setting",
                "ordering": ("queue", "group_key"),
                "default_permissions": (),
                "required_db_vendor": "postgresql",
                "indexes": [
                    models.Index(
                        condition=models.Q(("paused", True)),
                        fields=["queue", "group_key"],
                        name="pgqueue_group_setting_paused",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("queue", "group_key"), name="pgqueue_group_setting_unique"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("group_key__regex", "^(.{1,255})$")),
                        name="pgqueue_group_setting_group_key",
                    ),
                    *within("pgqueue_group_setting", (1, 10000), "limit", "burst"),
                    models.CheckConstraint(
                        condition=models.Q(("rate__regex", "^([1-9][0-9]{0,8}/[smhd])$")),
                        name="pgqueue_group_setting_rate",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("burst__isnull", True), ("rate__isnull", False), _connector="OR"
                        ),
                        name="pgqueue_group_setting_burst_needs_rate",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("burst__isnull", True), ("limit__isnull", True), _connector="OR"
                        ),
                        name="pgqueue_group_setting_burst_or_limit",
                    ),
                ],
            },
        ),
        migrations.SeparateDatabaseAndState(
            database_operations=[
                run_sql.run("messages"),
                run_sql.run("live"),
                run_sql.run("wake"),
                run_sql.run("send"),
                run_sql.run("groups"),
                run_sql.run("slots"),
                run_sql.run("whole_queue"),
                run_sql.run("changed_limits"),
                run_sql.run("claim_keys"),
                run_sql.run("clear_lost"),
                run_sql.run("truncate"),
                run_sql.run("repair"),
                run_sql.run("statistics"),
            ],
            state_operations=[
                migrations.CreateModel(
                    name="Message",
                    fields=[
                        ("id", models.BigAutoField(primary_key=True, serialize=False)),
                        ("enqueued_at", models.DateTimeField(db_default=NOW, editable=False)),
                        ("scheduled_at", models.DateTimeField(blank=True, null=True)),
                        ("expires_at", models.DateTimeField(blank=True, null=True)),
                        ("enqueued_xid", models.BigIntegerField(db_default=XID, editable=False)),
                        ("priority", models.SmallIntegerField(default=0)),
                        ("group_key", models.TextField(blank=True, null=True)),
                        ("unique_key", models.TextField(blank=True, null=True)),
                        (
                            "headers",
                            models.JSONField(
                                blank=True,
                                encoder=django.core.serializers.json.DjangoJSONEncoder,
                                null=True,
                            ),
                        ),
                        (
                            "body",
                            models.JSONField(
                                blank=True,
                                encoder=django.core.serializers.json.DjangoJSONEncoder,
                                null=True,
                            ),
                        ),
                        (
                            "queue",
                            models.ForeignKey(
                                db_constraint=False,
                                db_index=False,
                                on_delete=django.db.models.deletion.DO_NOTHING,
                                related_name="messages",
                                to="django_pgqueue.queue",
                            ),
                        ),
                    ],
                    options={
                        "verbose_name": "message",
                        "verbose_name_plural": "messages",
                        "db_table": "pgqueue_message",
                        "default_permissions": ("view", "delete"),
                        "permissions": (
                            ("send_message", "Can send messages"),
                            ("settle_message", "Can make messages readable and archive them"),
                            ("redrive_message", "Can redrive dead letters"),
                        ),
                        "required_db_vendor": "postgresql",
                    },
                ),
                migrations.CreateModel(
                    name="ArchivedMessage",
                    fields=[
                        ("id", models.BigIntegerField(primary_key=True, serialize=False)),
                        ("enqueued_at", models.DateTimeField()),
                        ("first_read_at", models.DateTimeField(null=True)),
                        ("last_read_at", models.DateTimeField(null=True)),
                        ("archived_at", models.DateTimeField(db_default=NOW)),
                        ("archive_xid", models.BigIntegerField(db_default=XID)),
                        ("read_ct", models.IntegerField()),
                        ("attempts", models.IntegerField()),
                        (
                            "state",
                            models.TextField(choices=django_pgqueue.types.end_choices),
                        ),
                        ("error", models.TextField(null=True)),
                        ("result", models.JSONField(null=True)),
                        (
                            "queue",
                            models.ForeignKey(
                                db_constraint=False,
                                db_index=False,
                                on_delete=django.db.models.deletion.DO_NOTHING,
                                related_name="archive",
                                to="django_pgqueue.queue",
                            ),
                        ),
                    ],
                    options={
                        "verbose_name": "archived message",
                        "verbose_name_plural": "archived messages",
                        "db_table": "pgqueue_archive",
                        "default_permissions": (),
                        "permissions": (
                            ("replay_archivedmessage", "Can send archived messages again"),
                        ),
                        "required_db_vendor": "postgresql",
                    },
                ),
            ],
        ),
        migrations.CreateModel(
            name="LiveMessage",
            fields=[
                ("id", models.BigIntegerField(primary_key=True, serialize=False)),
                (
                    "state",
                    models.TextField(
                        choices=[
                            ("PENDING", "Pending"),
                            ("SCHEDULED", "Scheduled"),
                            ("PROCESSING", "Processing"),
                            ("RETRYABLE", "Retryable"),
                        ]
                    ),
                ),
                ("vt", models.DateTimeField()),
                ("read_ct", models.IntegerField()),
                ("attempts", models.IntegerField()),
                ("priority", models.SmallIntegerField()),
                ("group_key", models.TextField(null=True)),
                ("enqueued_at", models.DateTimeField()),
                ("first_read_at", models.DateTimeField(null=True)),
                ("last_read_at", models.DateTimeField(null=True)),
                ("process_id", models.IntegerField(null=True)),
            ],
            options={"db_table": "pgqueue_live", "default_permissions": (), "managed": False},
        ),
    ]
