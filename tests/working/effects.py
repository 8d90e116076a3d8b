"""The effects of consumers on the database."""

from __future__ import annotations

from collections import defaultdict

from tests.app.models import Order

__all__ = ["numbers_by_group"]


def numbers_by_group() -> dict[str, list[int]]:
    """Return the numbers of each group's orders (``group-number``) as they were made.

    Ignores immediate repetitions, such as those after a kill or a failure.
    """
    made: dict[str, list[int]] = defaultdict(list)
    for order in Order.objects.order_by("pk"):
        group, number = order.number.split("-")
        if not made[group] or made[group][-1] != int(number):
            made[group].append(int(number))
    return dict(made)
