"""The inbox's URLs: the feed for users, and the webhook for GitHub."""

from __future__ import annotations

from django.urls import path

from example_project.inbox import views

app_name = "inbox"

urlpatterns = [
    path("", views.feed, name="feed"),
    path("repositories/<str:owner>/<str:name>/", views.repository, name="repository"),
    path("webhooks/github/", views.github_webhook, name="github-webhook"),
]
