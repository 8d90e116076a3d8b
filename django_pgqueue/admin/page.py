"""Base classes of the admin's pages. A page has a URL, a permission and a response."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404

from django_pgqueue.admin.access import queues_for
from django_pgqueue.models import Queue


class Page:
    """One page of a model admin, for one request. A model admin lists its pages in ``pages``."""

    #: The URL's name without ``django_pgqueue_``, and its path below the model admin's URL.
    name: ClassVar[str] = ""
    route: ClassVar[str] = ""
    #: The permission required for the page. If empty, the model's view or change permission.
    permission: ClassVar[str] = ""
    #: The template's name in ``admin/django_pgqueue``, without ``.html``.
    template: ClassVar[str] = ""
    #: Whether the page needs no log-in to the admin, and checks access itself.
    is_public: ClassVar[bool] = False
    #: Whether the page accepts only POST requests.
    is_post: ClassVar[bool] = False

    def __init__(
        self, owner: Any, request: HttpRequest, extra: dict[str, Any] | None = None
    ) -> None:
        self.owner = owner  # A PageAdmin. Its module imports this one, hence the type Any.
        self.request = request
        self.extra = extra or {}

    @classmethod
    def permits(cls, owner: Any, request: HttpRequest) -> bool:
        """Return whether the user may see this page."""
        if cls.is_public:
            return True
        if cls.permission:
            return request.user.has_perm(f"django_pgqueue.{cls.permission}")
        return bool(owner.has_view_or_change_permission(request))

    def answer(self, *args: Any, **given: Any) -> Any:
        """Return the response. ``given`` holds the values from the URL's path."""
        raise NotImplementedError

    def url(self, name: str, /, *args: object, **query: object) -> str:
        return str(self.owner.url(name, *args, **query))

    def may(self, page: type[Page]) -> bool:
        """Return whether the user may see another page of this model admin."""
        return page.permits(self.owner, self.request)

    def tell(self, text: str, level: int = messages.SUCCESS) -> None:
        """Show a text on the user's next page."""
        self.owner.message_user(self.request, text, level)

    def render(self, context: dict[str, Any], template: str = "") -> HttpResponse:
        path = f"admin/django_pgqueue/{template or self.template}.html"
        extra = {} if template else self.extra  # a question keeps its own title
        page: HttpResponse = self.owner.render_page(self.request, path, {**context, **extra})
        return page

    def render_live(self, context: dict[str, Any]) -> HttpResponse:
        """Render a page that refreshes itself. A refresh by admin.js gets only the live part."""
        told = {"is_list": True, "refreshed": True, **context}
        if self.request.headers.get("X-Requested-With") == "pgqueue":
            # Rendering the whole page would consume Django's pending messages.
            told["pgqueue_frame"] = "admin/django_pgqueue/live.html"
        return self.render(told)


class QueuePage(Page):
    """A page of one queue."""

    def queue(self, pk: int) -> Queue:
        """Return the queue. Raise Http404 if it does not exist or the user may not see it."""
        return get_object_or_404(queues_for(self.request), pk=pk)
