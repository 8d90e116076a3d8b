"""Create the webhooks' queue and its dead-letter queue, so that a deployment needs only `migrate`."""

from __future__ import annotations

from django.db import migrations

from django_pgqueue.operations import CreateQueue


class Migration(migrations.Migration):
    dependencies = [
        ("inbox", "0001_initial"),
        ("django_pgqueue", "0001_initial"),
    ]

    operations = [
        CreateQueue("github.dead"),
        # Messages of a killed consumer are delivered again after five seconds.
        CreateQueue(
            "github", visibility_timeout=5, max_deliveries=20, dead_letter_queue="github.dead"
        ),
    ]
