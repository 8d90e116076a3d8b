"""Models to save together with a message."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    number = models.CharField(max_length=40)
    note = models.TextField(blank=True, default="")

    def __str__(self) -> str:
        return self.number
