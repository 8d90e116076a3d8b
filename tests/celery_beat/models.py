"""The columns of django-celery-beat 2.9 that the import reads."""

# ruff: noqa: DJ001, DJ008

from __future__ import annotations

from typing import Any

from django.db import models


def reference(to: str) -> Any:
    return models.ForeignKey(to, models.CASCADE, null=True)


class IntervalSchedule(models.Model):
    every = models.IntegerField()
    period = models.CharField(max_length=24)


class CrontabSchedule(models.Model):
    minute = models.CharField(max_length=240, default="*")
    hour = models.CharField(max_length=96, default="*")
    day_of_week = models.CharField(max_length=64, default="*")
    day_of_month = models.CharField(max_length=124, default="*")
    month_of_year = models.CharField(max_length=64, default="*")
    timezone = models.CharField(max_length=63, default="UTC")


class SolarSchedule(models.Model):
    event = models.CharField(max_length=24)


class ClockedSchedule(models.Model):
    clocked_time = models.DateTimeField()


class PeriodicTask(models.Model):
    name = models.CharField(max_length=200, unique=True)
    task = models.CharField(max_length=200)
    interval = reference("IntervalSchedule")
    crontab = reference("CrontabSchedule")
    solar = reference("SolarSchedule")
    clocked = reference("ClockedSchedule")
    args = models.TextField(default="[]")
    kwargs = models.TextField(default="{}")
    queue = models.CharField(max_length=200, null=True)
    exchange = models.CharField(max_length=200, null=True)
    routing_key = models.CharField(max_length=200, null=True)
    headers = models.TextField(default="{}")
    priority = models.PositiveIntegerField(null=True)
    expires = models.DateTimeField(null=True)
    expire_seconds = models.PositiveIntegerField(null=True)
    one_off = models.BooleanField(default=False)
    start_time = models.DateTimeField(null=True)
    enabled = models.BooleanField(default=True)
