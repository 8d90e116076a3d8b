"""Only one process at a time holds the maintenance lease."""

from __future__ import annotations

from uuid import uuid4

import pytest

from django_pgqueue.maintenance import lease
from django_pgqueue.models import MaintenanceLease

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_lease_can_be_kept_and_left():
    mine, other = uuid4(), uuid4()

    assert lease.hold(mine, 60, using="default")
    since = MaintenanceLease.objects.get().since
    assert lease.hold(mine, 60, using="default")
    assert MaintenanceLease.objects.get().since == since
    assert not lease.hold(other, 60, using="default")

    lease.leave(other, using="default")
    assert not lease.hold(other, 60, using="default")
    lease.leave(mine, using="default")
    assert lease.hold(other, 60, using="default")
    assert MaintenanceLease.objects.get().since > since
