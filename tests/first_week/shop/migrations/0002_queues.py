from __future__ import annotations

from django.db import migrations

from django_pgqueue.operations import CreateQueue


class Migration(migrations.Migration):
    dependencies = [("shop", "0001_initial"), ("django_pgqueue", "0001_initial")]
    operations = [
        CreateQueue("payments.dead"),
        CreateQueue("payments", dead_letter_queue="payments.dead", max_deliveries=20),
        CreateQueue("reminders"),
        CreateQueue("receipts"),
        CreateQueue("geocoding", rate="10/m"),
        CreateQueue("imports", limit=2),
        CreateQueue("shipping"),
        CreateQueue("mails"),
        CreateQueue("quotes"),
        CreateQueue("reports"),
    ]
