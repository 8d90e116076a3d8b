"""Tables of the inbox: deliveries, repositories and activities."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Greatest
from django.urls import reverse
from django.utils import timezone

from example_project.inbox.activities import Kind


class RepositoryManager(models.Manager["Repository"]):
    def of(self, payload: dict[str, Any]) -> Repository | None:
        """The repository that *payload* is about; None for an organisation's or an app's event."""
        if not payload.get("repository"):
            return None
        repository, _ = self.get_or_create(full_name=payload["repository"]["full_name"])
        return repository


class Repository(models.Model):
    """A repository, as described by the newest delivery that mentions it."""

    full_name = models.CharField(max_length=200, unique=True)
    description = models.TextField(blank=True)
    stars = models.PositiveIntegerField(default=0)
    forks = models.PositiveIntegerField(default=0)
    open_issues = models.PositiveIntegerField(default=0)
    activity_count = models.PositiveIntegerField(default=0)
    last_activity_at = models.DateTimeField(null=True, blank=True)
    as_of = models.DateTimeField(
        null=True, blank=True, help_text="When the delivery with these numbers was received."
    )

    objects = RepositoryManager()

    class Meta:
        ordering = ["full_name"]
        verbose_name_plural = "repositories"

    def __str__(self) -> str:
        return self.full_name

    def get_absolute_url(self) -> str:
        owner, _, name = self.full_name.partition("/")
        return reverse("inbox:repository", args=[owner, name])

    def count_activity(self, received_at: datetime) -> None:
        """Count one more activity. The database adds, so concurrent consumers lose no count."""
        Repository.objects.filter(pk=self.pk).update(
            activity_count=F("activity_count") + 1,
            last_activity_at=Greatest("last_activity_at", received_at),
        )

    def take_numbers(self, payload: dict[str, Any], as_of: datetime) -> None:
        """Copy the repository's own numbers, unless they are from a newer delivery."""
        Repository.objects.filter(
            Q(as_of__isnull=True) | Q(as_of__lt=as_of),
            pk=self.pk,
        ).update(
            as_of=as_of,
            description=payload.get("description") or "",
            stars=payload.get("stargazers_count") or 0,
            forks=payload.get("forks_count") or 0,
            open_issues=payload.get("open_issues_count") or 0,
        )


class Delivery(models.Model):
    """The envelope of a webhook request. Its payload is the message's body."""

    guid = models.UUIDField(unique=True, help_text="GitHub's X-GitHub-Delivery.")
    event = models.CharField(max_length=50)
    action = models.CharField(max_length=100, blank=True)
    repository = models.CharField(max_length=200, blank=True, help_text="owner/name")
    message_id = models.BigIntegerField(null=True, blank=True, unique=True)
    received_at = models.DateTimeField(default=timezone.now, db_index=True)
    processed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        verbose_name_plural = "deliveries"

    def __str__(self) -> str:
        return f"{self.event}.{self.action}" if self.action else self.event

    @property
    def is_processed(self) -> bool:
        return self.processed_at is not None


class Activity(models.Model):
    """One line of the feed."""

    delivery = models.OneToOneField(Delivery, on_delete=models.CASCADE, related_name="activity")
    repository = models.ForeignKey(
        Repository,
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        related_name="activities",
        help_text="Empty for events of an organisation, an app or a sponsor.",
    )
    kind = models.CharField(max_length=20, choices=Kind.choices)
    actor = models.CharField(max_length=100, blank=True)
    title = models.CharField(max_length=300)
    url = models.URLField(max_length=500, blank=True)

    class Meta:
        ordering = ["-id"]
        verbose_name_plural = "activities"
        indexes = [models.Index(fields=["repository", "-id"], name="inbox_activity_by_repository")]

    def __str__(self) -> str:
        return self.title
