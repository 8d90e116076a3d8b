from __future__ import annotations

from django.db import models


class Order(models.Model):
    number: models.CharField[str, str] = models.CharField(max_length=40)
    customer: models.CharField[str, str] = models.CharField(max_length=40)
    note: models.CharField[str, str] = models.CharField(max_length=40, default="")

    def __str__(self) -> str:
        return self.number


class Mail(models.Model):
    text: models.TextField[str, str] = models.TextField()

    def __str__(self) -> str:
        return self.text
