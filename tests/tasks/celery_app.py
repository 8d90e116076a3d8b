"""An app of Celery with entries of both kinds: configured, and added when it is ready."""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.schedules import crontab

app = Celery("shop", broker="memory://", set_as_current=False)
app.conf.timezone = "Asia/Tokyo"
app.conf.beat_schedule = {
    "hourly": {"task": "tests.tasks.sample.noop", "schedule": crontab(minute=0)},
}


@app.task(name="tests.tasks.sample.add")
def add(one: int) -> None: ...


@app.on_after_finalize.connect
def schedule(sender: Any, **kwargs: Any) -> None:
    sender.add_periodic_task(10, add.s(5), name="added")
