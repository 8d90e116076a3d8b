"""Messages arrive without notifications, too."""

from __future__ import annotations

from functools import partial

import pytest

from django_pgqueue.models import ArchivedMessage, Message, queue
from tests.conftest import run_sql
from tests.promises import players
from tests.promises.consumers import handler_of
from tests.promises.draining import is_empty
from tests.promises.pages import promise

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]


@promise(
    "NOTIFY is only a hint.",
    "A lost or throttled notification, or a pooler, delays a message by up to max_fetch_interval "
    "(one second) and never loses it.",
)
@pytest.mark.parametrize("notified", [True, False])
def test_no_message_is_lost_whether_or_not_notifications_arrive(full_speed, consume, notified):
    Message.objects.create_queue("orders")
    handler = handler_of("NACK_ON_ERROR", full_speed.journal, ways=["return"], work=0)
    started = [consume(handlers=[handler], options={"listen": notified}) for _ in range(2)]
    full_speed.threads(partial(players.send, most=50), 4)
    queue("orders").send("first")
    full_speed.wait(is_empty)  # a consumer that cannot register ends
    if notified:
        # The listeners, too.
        full_speed.cut_connections(of_consumers=True)

    full_speed.run()
    full_speed.wait(is_empty)
    for each in started:
        each.stop()

    stored = {pk for (pk,) in run_sql("SELECT id FROM pgqueue_message")}
    assert set(ArchivedMessage.objects.values_list("pk", flat=True)) == stored
