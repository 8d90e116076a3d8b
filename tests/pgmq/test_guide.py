"""The page on other languages: its worker in JavaScript runs as written."""

from __future__ import annotations

import re
import signal
import subprocess

import pytest

from django_pgqueue.models import ArchivedMessage, LiveMessage
from tests.pgmq.conftest import environment
from tests.test_docs import ROOT
from tests.waiting import until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.acceptance,
    pytest.mark.slow,
]

PACK = """
export async function pack(body) {
  if (body.order === 2) throw new Error('no box');
}
"""


def test_the_javascript_worker_works_until_it_is_stopped(committed_orders, committed_pgmq, pgmq_js):
    [text] = re.findall(r"^```js\n(.*?)^```$", (ROOT / "docs/pgmq.md").read_text(), re.M | re.S)
    (pgmq_js / "guide.mjs").write_text(text)
    (pgmq_js / "pack.mjs").write_text(PACK)
    committed_orders.send_batch([{"order": 1}, {"order": 2}, {"order": 3}])
    with subprocess.Popen(
        ["node", "guide.mjs"], cwd=pgmq_js, env=environment(), stderr=subprocess.PIPE, text=True
    ) as worker:
        try:
            until(lambda: ArchivedMessage.objects.count() == 2)
            assert worker.poll() is None
        finally:
            worker.send_signal(signal.SIGTERM)
        _, errors = worker.communicate(timeout=30)
    assert worker.returncode == 0
    assert "no box" in errors
    assert {row.message.body["order"] for row in ArchivedMessage.objects.all()} == {1, 3}
    assert LiveMessage.objects.get().read_ct == 1
