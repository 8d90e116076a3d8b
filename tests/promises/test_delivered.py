"""Leases, receipts and deliveries, while many read and settle as fast as they can."""

from __future__ import annotations

from functools import partial

import pytest

from django_pgqueue.models import Message, queue
from tests.promises import players
from tests.promises.oracles import deliveries, held_by_two
from tests.promises.pages import promise

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]

EVERY_WAY = [way for way in players.WAYS if way != "leave"]


@promise("During a lease no other reader has the message.")
@pytest.mark.parametrize("fault", [None, "cut_connections", "time_out_statements"])
@pytest.mark.parametrize("qty", [1, [1, 3, 40]], ids=["single", "batches"])
def test_no_message_is_read_during_its_lease(full_speed, qty, fault):
    Message.objects.create_queue("orders", max_deliveries=1000)
    queue("orders").send_batch(range(1000))
    full_speed.threads(partial(players.read_and_end, ways=EVERY_WAY, qty=qty))
    full_speed.threads(partial(players.read_and_end, ways=["leave"], vt=0.03), number=1)
    full_speed.threads(players.send, number=1)
    if fault:
        getattr(full_speed, fault)()

    full_speed.run()

    notes = full_speed.notes()
    assert held_by_two(notes) == []
    assert any(len(reads) > 1 for reads in deliveries(notes).values())
