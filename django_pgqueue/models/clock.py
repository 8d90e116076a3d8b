"""The server's clock as an expression, for column defaults."""

from __future__ import annotations

from django.db import models

__all__ = ["NOW"]

NOW = models.Func(function="statement_timestamp", output_field=models.DateTimeField())
