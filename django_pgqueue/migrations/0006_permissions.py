"""A permission for each action of the admin, and none without a meaning."""

from __future__ import annotations

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ("django_pgqueue", "0005_caretaker"),
    ]

    operations = [
        migrations.AlterModelOptions(
            name="archivedmessage",
            options={
                "default_permissions": ("view",),
                "permissions": (("replay_archivedmessage", "Can send archived messages again"),),
            },
        ),
        migrations.AlterModelOptions(
            name="binding",
            options={"default_permissions": (), "ordering": ("pattern", "queue")},
        ),
        migrations.AlterModelOptions(
            name="deferred",
            options={"default_permissions": ()},
        ),
        migrations.AlterModelOptions(
            name="exportrun",
            options={"default_permissions": ("view",), "ordering": ("-id",)},
        ),
        migrations.AlterModelOptions(
            name="lake",
            options={"default_permissions": ("view", "change"), "ordering": ("path",)},
        ),
        migrations.AlterModelOptions(
            name="livemessage",
            options={"default_permissions": (), "managed": False},
        ),
        migrations.AlterModelOptions(
            name="message",
            options={
                "default_permissions": ("view", "delete"),
                "permissions": (
                    ("settle_message", "Can make messages readable and archive them"),
                    ("redrive_message", "Can redrive dead letters"),
                ),
            },
        ),
        migrations.AlterModelOptions(
            name="process",
            options={
                "default_permissions": ("view",),
                "permissions": (("view_health", "Can view the health of the database"),),
                "verbose_name_plural": "processes",
            },
        ),
        migrations.AlterModelOptions(
            name="purgemark",
            options={"default_permissions": ()},
        ),
        migrations.AlterModelOptions(
            name="queue",
            options={
                "ordering": ("name",),
                "permissions": (
                    ("pause_queue", "Can pause and resume queues"),
                    ("purge_queue", "Can purge queues"),
                ),
            },
        ),
        migrations.AlterModelOptions(
            name="ready",
            options={"default_permissions": ()},
        ),
        migrations.AlterModelOptions(
            name="rollup",
            options={"default_permissions": ("view",)},
        ),
        migrations.AlterModelOptions(
            name="rolluprun",
            options={"default_permissions": ("view",), "ordering": ("-id",)},
        ),
    ]
