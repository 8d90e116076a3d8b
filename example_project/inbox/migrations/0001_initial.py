"""The tables of the inbox."""

from __future__ import annotations

import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Delivery",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("guid", models.UUIDField(help_text="GitHub's X-GitHub-Delivery.", unique=True)),
                ("event", models.CharField(max_length=50)),
                ("action", models.CharField(blank=True, max_length=100)),
                (
                    "repository",
                    models.CharField(blank=True, help_text="owner/name", max_length=200),
                ),
                ("message_id", models.BigIntegerField(blank=True, null=True, unique=True)),
                (
                    "received_at",
                    models.DateTimeField(db_index=True, default=django.utils.timezone.now),
                ),
                ("processed_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "verbose_name_plural": "deliveries",
                "ordering": ["-id"],
            },
        ),
        migrations.CreateModel(
            name="Repository",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("full_name", models.CharField(max_length=200, unique=True)),
                ("description", models.TextField(blank=True)),
                ("stars", models.PositiveIntegerField(default=0)),
                ("forks", models.PositiveIntegerField(default=0)),
                ("open_issues", models.PositiveIntegerField(default=0)),
                ("activity_count", models.PositiveIntegerField(default=0)),
                ("last_activity_at", models.DateTimeField(blank=True, null=True)),
                (
                    "as_of",
                    models.DateTimeField(
                        blank=True,
                        help_text="When the delivery with these numbers was received.",
                        null=True,
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "repositories",
                "ordering": ["full_name"],
            },
        ),
        migrations.CreateModel(
            name="Activity",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("push", "push"),
                            ("issue", "issue"),
                            ("comment", "comment"),
                            ("pull_request", "pull request"),
                            ("release", "release"),
                            ("star", "star"),
                            ("other", "other"),
                        ],
                        max_length=20,
                    ),
                ),
                ("actor", models.CharField(blank=True, max_length=100)),
                ("title", models.CharField(max_length=300)),
                ("url", models.URLField(blank=True, max_length=500)),
                (
                    "delivery",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="activity",
                        to="inbox.delivery",
                    ),
                ),
                (
                    "repository",
                    models.ForeignKey(
                        blank=True,
                        help_text="Empty for events of an organisation, an app or a sponsor.",
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="activities",
                        to="inbox.repository",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "activities",
                "ordering": ["-id"],
                "indexes": [
                    models.Index(fields=["repository", "-id"], name="inbox_activity_by_repository")
                ],
            },
        ),
    ]
