"""A setting of a queue is declared once: whatever takes settings takes each of them."""

from __future__ import annotations

import datetime as dt
import inspect
import re
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import jedi
import pytest
from django.contrib.admin import site
from django.core.exceptions import ValidationError
from django.test import RequestFactory

from django_pgqueue.engine.arguments import NOT_OF_SUBSCRIPTIONS, OF_SUBSCRIPTIONS
from django_pgqueue.engine.open_queue import STORED
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.management.commands import pgqueue_alter, pgqueue_create, pgqueue_subscribe
from django_pgqueue.models import BoundQueue, Message, Queue, queue
from django_pgqueue.operations import AlterQueue, CreateQueue, DropQueue, Subscribe
from django_pgqueue.tables.queue import (
    SETTINGS,
    ChangeableSettings,
    QueueSettings,
    SubscriptionSettings,
)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "settings.md"
CHANGEABLE = {name for name, column in SETTINGS.items() if column.editable}
#: The settings with which a queue is made, and those of a subscription.
OF_A_QUEUE = SETTINGS.keys() - set(OF_SUBSCRIPTIONS)
OF_A_SUBSCRIPTION = SETTINGS.keys() - set(NOT_OF_SUBSCRIPTIONS)


def parameters(function: Any) -> dict[str, Any]:
    """The settings in a function's signature, with their defaults."""
    shown = inspect.signature(function).parameters.values()
    left_out = {"self", "name", "before", "to", "start"}
    return {each.name: each.default for each in shown if each.name not in left_out}


def test_a_setting_has_a_type():
    assert QueueSettings.__annotations__.keys() == OF_A_QUEUE
    assert SubscriptionSettings.__annotations__.keys() == OF_A_SUBSCRIPTION
    assert ChangeableSettings.__annotations__.keys() == CHANGEABLE


@pytest.mark.parametrize(
    "takes", [Message.objects.create_queue, BoundQueue.create, CreateQueue, DropQueue]
)
def test_what_makes_a_queue_shows_every_setting_with_its_default(takes):
    assert parameters(takes) == {name: SETTINGS[name].get_default() for name in OF_A_QUEUE}


@pytest.mark.parametrize("takes", [BoundQueue.subscribe, Subscribe])
def test_what_makes_a_subscription_shows_every_setting_with_its_default(takes):
    assert parameters(takes) == {name: SETTINGS[name].get_default() for name in OF_A_SUBSCRIPTION}


@pytest.mark.parametrize("takes", [BoundQueue.alter, AlterQueue])
def test_what_alters_a_queue_shows_the_settings_that_may_change(takes):
    assert parameters(takes) == dict.fromkeys(CHANGEABLE, ...)


@pytest.mark.parametrize(
    ("takes", "settings"),
    [
        (Message.objects.create_queue, OF_A_QUEUE),
        (BoundQueue.create, OF_A_QUEUE),
        (BoundQueue.subscribe, OF_A_SUBSCRIPTION),
        (BoundQueue.alter, CHANGEABLE),
    ],
)
def test_the_docstring_explains_every_setting(takes, settings):
    for name in settings:
        assert f"    {name}: " in takes.__doc__


@pytest.mark.parametrize(
    ("call", "settings"),
    [
        ("Message.objects.create_queue(", OF_A_QUEUE),
        ('queue("orders").create(', OF_A_QUEUE),
        ('queue("audit").subscribe(', OF_A_SUBSCRIPTION),
        ("CreateQueue(", OF_A_QUEUE),
        ("DropQueue(", OF_A_QUEUE),
        ("Subscribe(", OF_A_SUBSCRIPTION),
        ('queue("orders").alter(', CHANGEABLE),
        ("AlterQueue(", CHANGEABLE),
    ],
)
def test_an_editor_shows_every_setting(call, settings):
    imports = (
        "from django_pgqueue.models import Message, queue\n"
        "from django_pgqueue.operations import AlterQueue, CreateQueue, DropQueue, Subscribe\n"
    )

    [signature] = jedi.Script(imports + call).get_signatures()

    shown = {parameter.name for parameter in signature.params}
    assert shown - {"self", "name", "before", "to", "start"} == settings


@pytest.mark.parametrize(
    ("command", "settings"),
    [
        (pgqueue_create.Command, OF_A_QUEUE),
        (pgqueue_subscribe.Command, OF_A_SUBSCRIPTION),
        (pgqueue_alter.Command, CHANGEABLE),
    ],
)
def test_a_command_has_an_option_for_every_setting(command, settings):
    parser = ArgumentParser()
    command().add_arguments(parser)

    options = {action.dest for action in parser._actions}
    assert options - {"help", "queue", "database", "json", "to", "start"} == settings


@pytest.mark.parametrize(
    ("of", "settings"),
    [
        (None, CHANGEABLE & OF_A_QUEUE),
        (Queue(pk=1), CHANGEABLE & OF_A_QUEUE),
        (Queue(pk=2, source_id=1), CHANGEABLE & OF_A_SUBSCRIPTION),
    ],
)
def test_the_admin_has_a_field_for_every_setting_that_may_change(
    rf: RequestFactory, admin_user, of, settings
):
    request = rf.get("/")
    request.user = admin_user

    admin = site._registry[Queue]

    own = settings if of else {"name", *settings}
    assert set(admin.get_form(request, of).base_fields) == own
    shown = [name for _title, each in admin.get_fieldsets(request, of) for name in each["fields"]]
    assert sorted(shown) == sorted({"name", *settings})


def test_the_page_has_every_setting_with_its_default():
    text = PAGE.read_text().partition("## Settings of a queue")[2].partition("## Checks")[0]
    changeable, fixed = text.split("These settings concern storage.")

    for part, names in ((changeable, CHANGEABLE), (fixed, SETTINGS.keys() - CHANGEABLE)):
        rows = re.findall(r"^\| (`.*?) \| (\w+) \|", part, re.MULTILINE)
        told = {name: default for row, default in rows for name in re.findall(r"`(\w+)`", row)}
        assert told == {name: str(SETTINGS[name].get_default()) for name in names}


def test_an_open_queue_has_columns_of_the_queue():
    columns = {field.attname for field in Queue._meta.concrete_fields}

    assert columns >= set(STORED)


def test_an_unknown_setting_is_refused(db):
    with pytest.raises(TypeError, match=r"create\(\) got an unexpected keyword argument 'limits'"):
        BoundQueue("orders").create(limits=3)  # type: ignore[call-arg]

    assert not Queue.objects.exists()


def test_a_visibility_timeout_may_be_a_timedelta_of_whole_seconds(db):
    orders = queue("orders")

    assert orders.create(visibility_timeout=dt.timedelta(minutes=1)).visibility_timeout == 60
    with pytest.raises(InvalidArgument, match="must be whole seconds, at least 1"):
        queue("mails").create(visibility_timeout=dt.timedelta(seconds=1.5))


def test_a_dead_letter_queue_that_is_gone_is_named_as_the_cause(db):
    with pytest.raises(InvalidArgument, match="the dead_letter_queue of queue 'orders' does not"):
        Queue(name="orders", dead_letter_queue_id=999_999).save()


def test_a_form_refuses_a_queue_as_its_own_dead_letter_queue(db):
    orders = queue("orders").create()
    orders.dead_letter_queue = orders

    with pytest.raises(ValidationError, match="would form a cycle"):
        orders.full_clean()
