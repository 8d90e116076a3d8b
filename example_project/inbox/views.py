"""The webhook that GitHub calls, and the pages."""

from __future__ import annotations

from django.core.paginator import Page, Paginator
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe

from django_pgqueue import queue
from django_pgqueue.errors import InvalidMessage
from django_pgqueue.models import Message
from example_project.inbox.activities import Kind
from example_project.inbox.models import Activity, Delivery, Repository
from example_project.inbox.webhooks import Refused, Webhook, parse

github = queue("github")
dead = queue("github.dead")


@csrf_exempt
def github_webhook(request: HttpRequest) -> JsonResponse:
    """Answer GitHub: 202 for a new delivery, 200 for a known one, 4xx with the reason."""
    if request.method != "POST":
        return JsonResponse(
            {"error": "Send a POST request."}, status=405, headers={"Allow": "POST"}
        )
    try:
        webhook = parse(request)
    except Refused as refused:
        return JsonResponse({"error": str(refused)}, status=refused.status)
    try:
        delivery, is_new = accept(webhook)
    except InvalidMessage as error:
        return JsonResponse({"error": str(error)}, status=422)

    return JsonResponse(
        {"delivery": str(webhook.guid), "message": delivery.message_id, "duplicate": not is_new},
        status=202 if is_new else 200,
    )


def accept(webhook: Webhook) -> tuple[Delivery, bool]:
    """Store a delivery and publish its payload, in one transaction. Skips a known delivery."""
    with transaction.atomic():
        delivery, is_new = Delivery.objects.get_or_create(
            guid=webhook.guid,
            defaults={
                "event": webhook.event,
                "action": webhook.action[:100],
                "repository": webhook.repository[:200],
            },
        )
        if is_new:
            sent = Message.objects.publish(
                webhook.routing_key,
                webhook.payload,
                headers={"event": webhook.event, "delivery": str(webhook.guid)},
            )
            delivery.message_id = sent[github.name]
            delivery.save(update_fields=["message_id"])
    return delivery, is_new


@require_safe
def feed(request: HttpRequest) -> HttpResponse:
    """The latest activities, filtered by repository or kind if given."""
    activities = Activity.objects.select_related("repository", "delivery")
    chosen_repository = request.GET.get("repository", "")
    chosen_kind = request.GET.get("kind", "")
    if chosen_repository:
        activities = activities.filter(repository__full_name=chosen_repository)
    if chosen_kind:
        activities = activities.filter(kind=chosen_kind)

    return render(
        request,
        "inbox/feed.html",
        {
            "activities": _page(request, activities),
            "repositories": Repository.objects.order_by("-activity_count", "full_name")[:100],
            "kinds": Kind.choices,
            "chosen_repository": chosen_repository,
            "chosen_kind": chosen_kind,
            "metrics": github.metrics(),
            "dead_letters": dead.metrics().length,
        },
    )


@require_safe
def repository(request: HttpRequest, owner: str, name: str) -> HttpResponse:
    """A repository's page: its numbers and its activities."""
    repository = get_object_or_404(Repository, full_name=f"{owner}/{name}")
    activities = repository.activities.select_related("repository", "delivery")
    return render(
        request,
        "inbox/repository.html",
        {"repository": repository, "activities": _page(request, activities)},
    )


def _page(request: HttpRequest, activities: QuerySet[Activity]) -> Page[Activity]:
    return Paginator(activities, per_page=30).get_page(request.GET.get("page"))
