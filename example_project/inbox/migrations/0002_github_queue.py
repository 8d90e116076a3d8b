"""Create the queue of the webhooks and its dead-letter queue: `migrate` is all a deployment needs."""

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
        # A message that a killed consumer held is delivered again after five seconds.
        CreateQueue(
            "github", visibility_timeout=5, max_deliveries=20, dead_letter_queue="github.dead"
        ),
    ]
