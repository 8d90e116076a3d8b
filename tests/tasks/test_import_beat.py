"""``pgqueue_import_beat``: schedules of the entries of Celery's beat."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.apps import apps
from django.core.management import CommandError
from django.db import connection
from django.test import override_settings
from django.utils.timezone import now

from django_pgqueue.engine import cron
from django_pgqueue.management.beat import cron_of
from django_pgqueue.models import Queue, Schedule, queue
from django_pgqueue.testing import drain, travel
from tests.factories import QueueFactory
from tests.management.calling import call, call_json
from tests.tasks import sample

celery = pytest.importorskip("celery")
crontab = celery.schedules.crontab
#: Its __init__ needs a further package.
SUNSET = object.__new__(celery.schedules.solar)

ADD, NOOP = "tests.tasks.sample.add", "tests.tasks.sample.noop"


def entry(name: str, **entries: Any) -> dict[str, Any]:
    """What became of an entry of CELERY_BEAT_SCHEDULE."""
    with override_settings(CELERY_BEAT_SCHEDULE={name: {"task": ADD, "args": (1,), **entries}}):
        [found] = call_json("pgqueue_import_beat")["entries"]
    return found


def states(*arguments: object) -> dict[str, str]:
    found = call_json("pgqueue_import_beat", *arguments)["entries"]
    return {each["name"]: each["state"] for each in found}


# Times


@pytest.mark.parametrize(
    ("spec", "expression"),
    [
        ({}, "* * * * *"),
        ({"minute": 0, "hour": 4}, "0 4 * * *"),
        ({"minute": "*/15"}, "*/15 * * * *"),
        ({"minute": "0,30", "hour": "8-17"}, "0,30 8-17 * * *"),
        ({"minute": [5, 10], "hour": "22-2"}, "5,10 0-2,22-23 * * *"),
        ({"minute": 0, "hour": 0, "day_of_week": "mon-fri"}, "0 0 * * 1-5"),
        ({"minute": 0, "hour": 0, "day_of_week": "sun,sat"}, "0 0 * * 0,6"),
        ({"minute": 0, "hour": 0, "day_of_month": "*/2"}, "0 0 */2 * *"),
        ({"minute": 0, "hour": 0, "day_of_month": "1", "month_of_year": "*/3"}, "0 0 1 */3 *"),
        ({"minute": "*/7"}, "*/7 * * * *"),
        ({"minute": "*/40"}, "*/40 * * * *"),
    ],
)
def test_a_crontab_of_celery_becomes_a_cron_expression_with_the_same_ticks(spec, expression):
    crontab_ = crontab(**spec, nowfun=lambda: at)
    at = last = dt.datetime(2026, 2, 27, 12, 3, tzinfo=dt.timezone.utc)

    assert cron_of(crontab_) == expression

    for _ in range(50):
        tick = cron.following(expression, "UTC", last)
        last += crontab_.remaining_delta(last, tz=dt.timezone.utc)[1]
        last = last.replace(second=0, microsecond=0)
        assert tick == last


def test_the_times_of_the_settings_become_those_of_schedules(backend):
    with override_settings(CELERY_TIMEZONE="Europe/Berlin"):
        nightly = entry("nightly", schedule=crontab(minute=0, hour=4))
    seconds = entry("seconds", schedule=30.0)
    span = entry("span", schedule=dt.timedelta(hours=2))
    run_every = entry("object", schedule=celery.schedules.schedule(90))

    assert (nightly["cron"], nightly["time_zone"]) == ("0 4 * * *", "Europe/Berlin")
    assert [each["interval"] for each in (seconds, span, run_every)] == [30, 7200, 90]
    assert entry("default", schedule=crontab())["time_zone"] == "UTC"
    stored = Schedule.objects.get(name="nightly")
    assert (stored.cron, stored.time_zone, stored.paused) == ("0 4 * * *", "Europe/Berlin", False)
    assert stored.declared is None


# Messages


def test_an_imported_task_runs_as_an_enqueued_one(backend, work_off):
    entry("adding", schedule=60, args=(1,), kwargs={"two": 2}, options={"expires": 30})

    travel(60)
    Schedule.objects.send_due(using="default")

    [message] = queue("default").peek()
    assert message.body == {"task": ADD, "args": [1], "kwargs": {"two": 2}}
    assert 0 < (message.expires_at - message.enqueued_at).total_seconds() <= 30
    work_off("default")
    assert sample.ran == [(1, 2)]


@pytest.fixture
def work_off(backend: Any) -> Any:
    from django_pgqueue.tasks import consuming

    consuming.register()
    return drain


def test_the_queue_of_an_entry_is_taken_if_the_backend_has_it(backend):
    known = entry("known", schedule=60, options={"queue": "emails"})
    unknown = entry("unknown", schedule=60, options={"queue": "celery", "priority": 9})

    assert (known["queue"], known["notes"]) == ("emails", [])
    assert unknown["queue"] == "default"
    assert unknown["notes"] == [
        "priority is left out",
        "queue 'celery' is not in QUEUES: its messages go to 'default'",
    ]


def test_options_without_a_counterpart_are_reported_as_left_out(backend):
    options = {"countdown": 20, "retry": False, "expires": 30, "priority": None}

    found = entry("adding", schedule=60, options=options)

    assert found["notes"] == ["countdown is left out", "retry is left out"]


@pytest.mark.parametrize(
    ("given", "body"),
    [
        ({"args": (), "kwargs": {"order": 7}}, {"order": 7}),
        ({"args": (7, "x")}, [7, "x"]),
        ({"args": ()}, None),
    ],
)
def test_a_task_that_became_a_consumer_gets_a_body_of_its_arguments(backend, given, body):
    QueueFactory(name="charges")
    items = {"charging": {"task": "shop.charge", "schedule": 60, **given}}

    with override_settings(CELERY_BEAT_SCHEDULE=items):
        assert states("--queue", "shop.charge=charges") == {"charging": "made"}
        assert states("--queue", "shop.charge=charges") == {"charging": "unchanged"}

    made = Schedule.objects.get()
    assert (made.queue.name, made.body) == ("charges", body)


def test_a_task_of_another_name_is_named(backend):
    items = {"adding": {"task": "add", "schedule": 60, "args": [1]}}

    with override_settings(CELERY_BEAT_SCHEDULE=items):
        assert states() == {"adding": "refused"}
        assert states("--task", f"add={ADD}") == {"adding": "made"}

    assert Schedule.objects.get().body["task"] == ADD


# What cannot


class Moon(celery.schedules.BaseSchedule):
    """A schedule class of a project's own."""


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"schedule": 0.5}, "interval must be at least a second"),
        ({"schedule": SUNSET}, "follows the sun"),
        ({"schedule": Moon()}, "has times of the class tests.tasks.test_import_beat.Moon"),
        ({"schedule": None}, "has times of the class builtins.NoneType"),
        ({"schedule": crontab(0, 0, 1, "1-7")}, "either is enough"),
        ({"task": None}, "names no task"),
        ({"task": "shop.gone"}, "--task shop.gone=PATH"),
        ({"task": "tests.tasks.sample.plain"}, "is not a task of Django's Tasks: name what"),
        ({"task": "celery.backend_cleanup"}, "is Celery's own"),
        ({"args": (1, 2, 3)}, "too many positional arguments"),
        ({"kwargs": {"two": object()}}, "not JSON"),
        ({"options": {"expires": now()}}, "no schedule has an end"),
        ({"options": {"expires": 0.5}}, "expires must be at least a second"),
    ],
)
def test_an_entry_that_cannot_become_a_schedule_is_listed_with_the_reason(backend, given, reason):
    found = entry("odd", **{"schedule": 60, **given})

    assert found["state"] == "refused"
    assert reason in found["reason"]
    assert not Schedule.objects.exists()


def test_an_entry_that_is_no_dict_is_listed_with_the_reason(backend):
    items = {"odd": ADD, "adding": {"task": ADD, "schedule": 60, "args": (1,)}}

    with override_settings(CELERY_BEAT_SCHEDULE=items):
        odd, adding = call_json("pgqueue_import_beat")["entries"]

    assert (odd["state"], adding["state"]) == ("refused", "made")
    assert odd["reason"] == "is of the type str: an entry must be a dict"


def test_a_missing_queue_is_a_reason(backend):
    Queue.objects.get(name="emails").delete()

    found = entry("mails", schedule=60, options={"queue": "emails"})

    assert "no queue 'emails'" in found["reason"]


# Again


def test_a_second_import_changes_nothing_without_update(backend):
    first, again = (entry("adding", schedule=60) for _ in range(2))
    changed = entry("adding", schedule=90, args=(2,))

    assert (first["state"], again["state"]) == ("made", "unchanged")
    assert (changed["state"], changed["differs"]) == ("differs", ["body", "interval"])
    with override_settings(
        CELERY_BEAT_SCHEDULE={"adding": {"task": ADD, "schedule": 90, "args": (2,)}}
    ):
        assert states("--update") == {"adding": "updated"}
    stored = Schedule.objects.get()
    assert stored.interval == dt.timedelta(seconds=90)
    assert stored.body["args"] == [2]


@pytest.mark.parametrize("paused", [True, False])
def test_an_update_leaves_a_schedule_paused_or_running(backend, paused):
    entry("adding", schedule=60)
    Schedule.objects.update(paused=paused)
    items = {"adding": {"task": ADD, "schedule": 90, "args": (1,)}}

    with override_settings(CELERY_BEAT_SCHEDULE=items):
        said = call("pgqueue_import_beat", "--update")

    stored = Schedule.objects.get()
    assert (stored.interval, stored.paused) == (dt.timedelta(seconds=90), paused)
    assert ("Stop Celery's beat now" in said.err) is not paused


def test_an_update_with_paused_pauses(backend):
    entry("adding", schedule=60)
    items = {"adding": {"task": ADD, "schedule": 60, "args": (1,)}}

    with override_settings(CELERY_BEAT_SCHEDULE=items):
        said = call("pgqueue_import_beat", "--update", "--paused")

    assert Schedule.objects.get().paused
    assert said.err == ""


def test_a_schedule_that_the_code_declares_stays(backend):
    entry("adding", schedule=60)
    Schedule.objects.update(declared={})
    with override_settings(
        CELERY_BEAT_SCHEDULE={"adding": {"task": ADD, "schedule": 90, "args": (1,)}}
    ):
        [found] = call_json("pgqueue_import_beat", "--update")["entries"]

    assert found["state"] == "differs"
    assert found["notes"] == ["the code declares it, with @schedule"]
    assert Schedule.objects.get().interval == dt.timedelta(seconds=60)


def test_a_dry_run_makes_nothing_and_says_what_it_would_make(backend):
    items = {
        "adding": {"task": ADD, "schedule": crontab(0, 4), "args": (1,)},
        "sunset": {"task": NOOP, "schedule": SUNSET},
    }

    with override_settings(CELERY_BEAT_SCHEDULE=items):
        said = call("pgqueue_import_beat", "--dry-run")

    assert not Schedule.objects.exists()
    assert said.out.splitlines() == [
        "schedule  times          queue",
        "adding    0 4 * * * UTC  default  made",
        "Not imported: sunset: follows the sun: no schedule does",
        "Would be: 1 made, 1 not imported.",
    ]
    assert said.err == ""


def test_a_made_schedule_asks_to_stop_beat_unless_it_is_paused(backend):
    items = {"adding": {"task": ADD, "schedule": 60, "args": (1,)}}

    with override_settings(CELERY_BEAT_SCHEDULE=items):
        paused = call("pgqueue_import_beat", "--paused")
        Schedule.objects.all().delete()
        running = call("pgqueue_import_beat")

    assert paused.err == ""
    assert "made; paused" in paused.out
    assert "Stop Celery's beat now" in running.err


# Sources


def test_a_name_that_no_entry_has_is_an_error(backend):
    items = {"adding": {"task": "shop.add", "schedule": 60}}

    with (
        override_settings(CELERY_BEAT_SCHEDULE=items),
        pytest.raises(CommandError, match=r"shop\.ad\. Entries run shop\.add"),
    ):
        call("pgqueue_import_beat", "--queue", "shop.ad=charges")


def test_a_database_without_tables_is_an_error(backend, sql):
    sql("SET LOCAL search_path = pg_catalog")
    items = {"adding": {"task": ADD, "schedule": 60, "args": (1,)}}

    with (
        override_settings(CELERY_BEAT_SCHEDULE=items),
        pytest.raises(CommandError, match="migrate --database default"),
    ):
        call("pgqueue_import_beat")


def test_without_any_beat_the_command_names_its_sources(backend):
    with pytest.raises(CommandError, match=r"CELERY_BEAT_SCHEDULE.* --app mysite"):
        call("pgqueue_import_beat")


def test_an_app_of_celery_has_its_schedule_and_time_zone(backend):
    for name in ("hourly", "added"):
        assert not Schedule.objects.filter(name=name).exists()

    assert states("--app", "tests.tasks.celery_app:app") == {"hourly": "made", "added": "made"}

    hourly, added = Schedule.objects.order_by("-name")
    assert (hourly.cron, hourly.time_zone) == ("0 * * * *", "Asia/Tokyo")
    assert (added.interval, added.body["args"]) == (dt.timedelta(seconds=10), [5])


@pytest.mark.parametrize(
    "path", ["nowhere:app", "tests.tasks.celery_app:nothing", "tests.settings:INSTALLED_APPS"]
)
def test_an_app_that_does_not_exist_is_an_error(backend, path):
    with pytest.raises(CommandError, match=f"There is no app of Celery at '{path}'"):
        call("pgqueue_import_beat", "--app", path)


@pytest.fixture
def rows(backend: Any, settings: Any) -> Any:
    """The models of django-celery-beat, with their tables."""
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "tests.celery_beat"]
    models = apps.get_app_config("django_celery_beat")
    with connection.schema_editor() as editor:
        for model in models.get_models():
            editor.create_model(model)
    return models


def test_rows_of_django_celery_beat_become_schedules(rows):
    made = rows.get_model("PeriodicTask").objects.create
    cron = rows.get_model("CrontabSchedule").objects.create(
        minute="30", hour="2", timezone="Europe/Berlin"
    )
    interval = rows.get_model("IntervalSchedule").objects.create(every=2, period="hours")
    made(name="nightly", task=ADD, crontab=cron, args="[1]", expire_seconds=60)
    made(name="often", task=ADD, interval=interval, kwargs='{"one": 1}', enabled=False)

    assert states() == {"nightly": "made", "often": "made"}

    nightly, often = Schedule.objects.order_by("name")
    assert (nightly.cron, nightly.time_zone) == ("30 2 * * *", "Europe/Berlin")
    assert (nightly.expires, nightly.paused) == (dt.timedelta(minutes=1), False)
    assert nightly.body == {"task": ADD, "args": [1], "kwargs": {}}
    assert (often.interval, often.paused) == (dt.timedelta(hours=2), True)
    assert often.body["kwargs"] == {"one": 1}
    assert states() == {"nightly": "unchanged", "often": "unchanged"}


def test_rows_that_cannot_become_schedules_are_listed(rows):
    made = rows.get_model("PeriodicTask").objects.create
    of = {name: rows.get_model(f"{name}Schedule").objects.create for name in ("Interval", "Solar")}
    hour = of["Interval"](every=1, period="hours")
    clock = rows.get_model("ClockedSchedule").objects.create(clocked_time=now())
    soon = now() + dt.timedelta(days=1)
    made(name="clocked", task=NOOP, clocked=clock, one_off=True)
    made(name="ends", task=NOOP, interval=hour, expires=soon)
    made(name="fast", task=NOOP, interval=of["Interval"](every=5, period="microseconds"))
    made(name="once", task=NOOP, interval=hour, one_off=True)
    made(name="solar", task=NOOP, solar=of["Solar"](event="sunset"))
    made(name="starts", task=NOOP, interval=hour, start_time=soon)
    made(name="torn", task=NOOP, interval=hour, args="[1")

    found = call_json("pgqueue_import_beat")["entries"]

    assert {each["name"]: " ".join(each["reason"].split()[:2]) for each in found} == {
        "clocked": "runs once:",
        "ends": "ends at",
        "fast": "interval must",
        "once": "runs once:",
        "solar": "follows the",
        "starts": "starts at",
        "torn": "args or",
    }
    assert not Schedule.objects.exists()


def test_a_row_takes_precedence_over_the_settings(rows):
    hour = rows.get_model("IntervalSchedule").objects.create(every=1, period="hours")
    rows.get_model("PeriodicTask").objects.create(name="adding", task=NOOP, interval=hour)

    found = entry("adding", schedule=60)

    assert (found["task"], found["interval"]) == (NOOP, 3600)
