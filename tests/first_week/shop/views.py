from __future__ import annotations

from django.http import HttpRequest, JsonResponse

from django_pgqueue import queue


async def order(request: HttpRequest) -> JsonResponse:
    number = await queue("mails").asend(f"We got order {request.GET['number']}")
    return JsonResponse({"message": number}, status=201)
