from __future__ import annotations

from django.urls import path
from shop.views import order

urlpatterns = [path("orders", order)]
