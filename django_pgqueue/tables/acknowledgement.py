"""Acknowledged alerts of the admin's overview."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from django_pgqueue.database.home import HomeManager
from django_pgqueue.tables import columns


class Acknowledgement(models.Model):
    """An alert that a user knows of, as it was then: it is folded until it changes.

    ``causes`` are the keys of all causes of the alert, and ``errors`` the types of its errors,
    separated by commas. ``harm`` is the number of messages, or of failed attempts in ten minutes.
    """

    id: columns.BigAutoKey = models.BigAutoField(primary_key=True)
    cause: columns.Text = models.TextField()
    subject: columns.Text = models.TextField()
    causes: columns.Text = models.TextField()
    errors: columns.Text = models.TextField()
    harm: columns.BigInteger = models.BigIntegerField()
    by: columns.Text = models.TextField()
    at: columns.Time = models.DateTimeField(db_default=columns.NOW)

    objects: ClassVar[models.Manager[Acknowledgement]] = HomeManager["Acknowledgement"]()

    class Meta(columns.Meta):
        db_table = "pgqueue_acknowledgement"
        permissions: ClassVar[tuple[tuple[str, str], ...]] = (
            ("acknowledge_alert", "Can acknowledge alerts"),
        )
        constraints: ClassVar[tuple[models.BaseConstraint, ...]] = (
            models.UniqueConstraint(
                fields=["cause", "subject"], name="pgqueue_acknowledgement_unique"
            ),
        )

    def __str__(self) -> str:
        return f"{self.cause} {self.subject}".strip()
