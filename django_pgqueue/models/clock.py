"""The server's clock, as the default of a column."""

from __future__ import annotations

from django.db import models

__all__ = ["NOW"]

NOW = models.Func(function="statement_timestamp", output_field=models.DateTimeField())
