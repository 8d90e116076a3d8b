from __future__ import annotations

from django_pgqueue.tasks import task
from shop.models import Order


@task
def count_orders(customer: str) -> int:
    return Order.objects.filter(customer=customer).count()
