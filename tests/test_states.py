"""A state is declared once: each place that asks for its meaning knows every state."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from django_pgqueue.errors import MessageCancelled, MessageExpired, MessageFailed
from django_pgqueue.models import ArchivedMessage, BoundQueue, History, LiveMessage, Rollup, queue
from django_pgqueue.prometheus.counters import registry
from django_pgqueue.tasks.results import load
from django_pgqueue.types import ENDS, State, counted_in
from tests.tasks.sample import add

ROOT = Path(__file__).resolve().parents[1]
SOURCES = [
    path
    for package in ("django_pgqueue", "pyspark_pgqueue", "docs")
    for path in sorted((ROOT / package).rglob("*"))
    if "_build" not in path.parts
    and path.suffix in {".py", ".pyi", ".sql", ".html", ".js", ".css", ".json", ".yml", ".md"}
]

pytestmark = pytest.mark.django_db


def ended(orders: BoundQueue, state: str) -> int:
    """Archive a message with this state. Returns its id."""
    pk = orders.send({"task": add.module_path, "args": [1, 2], "kwargs": {}})
    orders.archive(pk)
    ArchivedMessage.objects.filter(pk=pk).update(state=state)
    return pk


@pytest.mark.parametrize("state", State)
def test_a_state_is_its_name_also_in_another_process(state):
    assert pickle.loads(pickle.dumps(state)) is State(state.name) is state
    assert (str(state), state) == (state.name, state.name)


def test_a_message_ends_with_a_success_a_failure_or_neither():
    assert State.COMPLETED.is_success
    assert State.FAILED.is_failure
    assert [state for state in State if state.is_success and state.is_failure] == []
    assert [state for state in State if state.is_of_attempt and not state.is_terminal] == []


@pytest.mark.parametrize("state", ENDS)
def test_only_a_failure_fails(orders, state):
    pk = ended(orders, state)

    try:
        orders.result(pk)
        error = None
    except MessageFailed as raised:
        error = type(raised)

    assert (error is None) == state.is_success
    assert (error is MessageFailed) == state.is_failure
    assert error in {None, MessageFailed, MessageCancelled, MessageExpired}


@pytest.mark.parametrize("state", ENDS)
def test_a_task_of_a_message_that_did_not_fail_names_another_error(db, state):
    queue("default").create()
    pk = ended(queue("default"), state)

    result = load(str(pk), backend="default", using="default", queues=["default"])

    assert result.status == ("SUCCESSFUL" if state.is_success else "FAILED")
    of_failure = "django_pgqueue.errors.PgQueueError"
    classes = [each.exception_class_path for each in result.errors]
    assert (classes == [of_failure]) == state.is_failure


def test_an_unknown_state_is_an_error_and_no_failure(db):
    queue("default").create()
    pk = ended(queue("default"), "LOST")

    with pytest.raises(ValueError, match="'LOST' is not a state that this version knows"):
        queue("default").result(pk)
    with pytest.raises(ValueError, match="'LOST' is not a state that this version knows"):
        load(str(pk), backend="default", using="default", queues=["default"])


@pytest.mark.parametrize(("table", "model"), [("history", History), ("rollup", Rollup)])
def test_a_table_has_a_column_for_each_state_that_it_counts(table, model):
    columns = {field.name for field in model._meta.concrete_fields}

    counted = {state.counter for state in counted_in(table)}

    assert counted == columns & {state.counter for state in ENDS}


def test_each_state_that_consumers_count_has_a_prometheus_counter():
    names = {metric.name for metric in registry.collect()}

    assert {f"pgqueue_{state.counter}" for state in counted_in("history")} - names == set()


def test_the_index_of_failures_and_its_queries_name_each_failing_state():
    failing = {str(state) for state in State if state.is_failure}

    for name in ("ddl/messages.sql", "admin/failures.sql", "admin/message.sql"):
        text = (ROOT / "django_pgqueue" / name).read_text()
        assert set(re.findall(r"state = '(\w+)'", text)) == failing, name


def test_models_offer_the_states_of_their_messages():
    def offered(model: Any) -> set[str]:
        return {value for value, _ in model._meta.get_field("state").flatchoices}

    assert offered(ArchivedMessage) == set(map(str, ENDS))
    assert offered(LiveMessage) == {str(state) for state in State} - set(map(str, ENDS))


def test_nothing_but_the_declaration_and_one_page_lists_the_terminal_states():
    """Three names in a row are taken for a list."""
    name = rf"\b({'|'.join(ENDS)})\b"
    lists = {
        str(path.relative_to(ROOT)): set(re.findall(name, found[0]))
        for path in SOURCES
        if (found := re.search(rf"(?:{name}\W{{1,40}}(?:\w+\W+)?){{2,}}{name}", path.read_text()))
    }

    assert lists == {"docs/schema.md": set(map(str, ENDS))}
