"""What to write instead of other libraries' names, for the errors about unknown names.

The names are those of Celery, Dramatiq, RQ, Huey, Procrastinate, django-q2, SQS and RabbitMQ.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

__all__ = ["CONSUMER", "METHODS", "QUEUE", "SCHEDULE", "SEND", "TASK", "TASK_METHODS", "unexpected"]


def unexpected(
    function: Callable[..., Any], given: Iterable[str], advice: Mapping[str, str]
) -> TypeError:
    """Return the error for keyword arguments that ``function`` does not have.

    >>> unexpected(queue("orders").send, {"countdown": 60}, SEND)
    TypeError("send() got an unexpected keyword argument 'countdown': pass delay=60 …")
    """
    name = next(iter(given))
    known = [
        each.name
        for each in inspect.signature(function).parameters.values()
        if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD) and each.name != "self"
    ]
    close = get_close_matches(name, known, n=1)
    if close and name not in advice:
        then = f". Did you mean {close[0]!r}?"
    else:
        then = f": {advice[name]}" if name in advice else f". Its arguments: {', '.join(known)}"
    called = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]
    return TypeError(f"{called}() got an unexpected keyword argument {name!r}{then}")


def _by_name(*rows: tuple[str, str]) -> dict[str, str]:
    """Return each name's advice. A row has names, separated by spaces, and their advice."""
    return {name: advice for names, advice in rows for name in names.split()}


_RETRY = "retry=Exponential(first=1, max_attempts=5), of django_pgqueue.retries"
_BY_CONSUMER = "the consumer has this option, for all messages of its queue: pass @consumer "

#: Arguments of a send.
SEND = _by_name(
    (
        "countdown defer_by delay_seconds enqueue_in in_ seconds",
        "pass delay=60, in seconds, or a timedelta",
    ),
    (
        "at deliver_at enqueue_at eta not_before run_after run_at schedule_at scheduled_at when",
        "pass delay=, which takes an aware datetime, too",
    ),
    (
        "expire expire_seconds expires_at expires_in job_ttl message_ttl time_to_live ttl",
        "pass expires=, in seconds, a timedelta or an aware datetime",
    ),
    (
        "args job_args kwargs params task_args task_kwargs",
        'a message has one body, such as send({"order": 7}). To enqueue a call, with its '
        "arguments, use a task",
    ),
    (
        "cluster exchange queue queue_name routing_key",
        'name the queue first: queue("orders").send(body)',
    ),
    (
        "attempts autoretry_for max_attempts max_retries retries retry retry_backoff retry_policy",
        f"{_BY_CONSUMER}{_RETRY}",
    ),
    ("job_timeout soft_time_limit time_limit timeout", f"{_BY_CONSUMER}timeout=60"),
    ("ignore_result keep_result result_ttl store_result", f"{_BY_CONSUMER}keep_result=True"),
    (
        "dedup_key deduplication_id id job_id key lock message_id queueing_lock singleton_key "
        "task_id unique_key",
        "pass unique=, a text: while a message holds it, a second send adds none",
    ),
    (
        "group_id group_key message_group_id ordering_key partition_key",
        "pass group=, a text: messages of a group are handled in order, one at a time",
    ),
    ("attributes meta metadata properties", "pass headers=, a dict"),
    ("callback chain hook link on_success", "let the handler send the next message"),
    ("alias database db using", 'pass it to queue: queue("orders", using="other")'),
)

#: Settings of a queue.
QUEUE = _by_name(
    (
        "attempts delivery_limit max_attempts max_receive_count max_retries retries retry_limit",
        "pass max_deliveries=20, after which a message fails. Tries after an error are counted by "
        "the consumer: pass @consumer retry=Exponential(max_attempts=5)",
    ),
    (
        "dead_letter dead_letter_exchange dead_letters dlq failure_queue",
        "pass dead_letter_queue=, the name of a queue",
    ),
    (
        "ack_timeout lease timeout visibility visibility_timeout_seconds vt",
        "pass visibility_timeout=30, in whole seconds",
    ),
    (
        "keep keep_for retention_days retention_period retention_seconds ttl",
        "pass retention=, in seconds or a timedelta: how long finished messages are kept",
    ),
    (
        "concurrency global_limit max_concurrency max_workers workers",
        "pass limit=4, the most messages in flight, over all processes",
    ),
    ("rate_limit throttle", 'pass rate="10/s", over all processes'),
    ("dedup_window unique_for unique_period", "pass unique_window=, in seconds or a timedelta"),
    ("partition partition_by partitioned", "pass partition_interval=timedelta(days=1)"),
    ("durable persistent", "every queue is, unless you pass unlogged=True"),
    ("fifo ordered", 'every queue has FIFO groups: send(body, group="customer-7")'),
    ("max_priority priorities priority", "messages have it: send(body, priority=10)"),
    ("countdown delay delay_seconds", "messages have it: send(body, delay=60)"),
    ("alias database db using", 'pass it to queue: queue("orders", using="other").create()'),
)

_FAILING = (
    "attempts autoretry_for backoff default_retry_delay max_attempts max_backoff max_retries "
    "min_backoff retries retry_backoff retry_backoff_max retry_delay retry_jitter retry_kwargs "
    "retry_when throws",
    f"pass {_RETRY}",
)
_TOO_LONG = ("job_timeout max_time soft_time_limit time_limit", "pass timeout=60, in seconds")
_TOO_MANY = ("rate_limit throttle throttle_by", 'set it on the queue: create(rate="10/s")')
_LATE = (
    "acks_late acks_on_failure_or_timeout reject_on_worker_lost task_reject_on_worker_lost",
    "leave it out: a message whose process dies is delivered again",
)
_PERIODIC = ("cron crontab every periodic run_every", "put @schedule above the function")

#: Arguments of ``@consumer``.
CONSUMER = _by_name(
    _FAILING,
    _TOO_LONG,
    _TOO_MANY,
    _LATE,
    _PERIODIC,
    (
        "concurrency max_concurrency processes threads workers",
        "pass max_workers=4, in each process. Over all processes: create(limit=4) of the queue",
    ),
    ("limit", "pass max_workers=4, in each process. Over all: create(limit=4) of the queue"),
    ("group_limit rate", "set it on the queue, with create()"),
    ("actor_name name queue_name queues", 'pass one queue\'s name first: @consumer("orders")'),
    ("bind context pass_context", "name a parameter of the function message, or context"),
    ("ignore_result result_ttl store_results", "pass keep_result=True to keep results"),
    ("prefetch prefetch_count prefetch_multiplier", "pass fetch_batch_size=, overfetch_factor="),
    ("priority", "messages have it: send(body, priority=10)"),
    ("auto_ack no_ack", 'pass ack_policy="ACK_FIRST"'),
    ("dead_letter_queue dlq", "set it on the queue: create(dead_letter_queue=...)"),
    ("alias database db", "pass using=, the alias of the database"),
)

#: Arguments of ``@task``.
TASK = _by_name(
    _FAILING,
    _TOO_LONG,
    _TOO_MANY,
    _LATE,
    _PERIODIC,
    ("queue", "pass queue_name="),
    ("bind context pass_context", "pass takes_context=True"),
    (
        "countdown delay eta run_after run_at",
        "it is of one run: charge.using(run_after=datetime).enqueue(7)",
    ),
    ("expire ttl", "pass expires=, in seconds or a timedelta"),
    ("ignore_result keep_result result_ttl store_result", "leave it out: results are kept"),
    ("actor_name name", "leave it out: a task is named by its module and function"),
    ("lock", "pass group=, whose tasks run one at a time"),
    ("queueing_lock", "pass unique=, the key of which one task waits"),
    ("concurrency limit max_workers workers", "set the queue's limit, or OPTIONS of the backend"),
)

#: Arguments of ``@schedule``.
SCHEDULE = _by_name(
    ("time_zone timezone zone", 'pass tz="Europe/Berlin"'),
    ("interval repeat run_every seconds", "pass every=30, in seconds, or a timedelta"),
    ("days hours minutes weeks", "pass every=timedelta(...)"),
    (
        "cron crontab day day_of_month day_of_week hour minute month month_of_year",
        'pass five fields as one text first: @schedule("30 4 * * MON")',
    ),
    ("queue queue_name task", "put @schedule above the @consumer or @task that it is for"),
)

_SEND = "send(body): a message is data. To enqueue a call of a function, make it a task"

#: Methods of a queue.
METHODS = _by_name(
    (
        "add apply apply_async async_task basic_publish defer delay enqueue insert produce "
        "publish push put schedule send_message send_task send_with_options",
        _SEND,
    ),
    ("enqueue_at enqueue_in send_later", "send(body, delay=60)"),
    ("bulk_create enqueue_many put_many send_many send_messages", "send_batch(bodies)"),
    ("basic_get dequeue fetch get receive receive_message reserve", "read()"),
    ("basic_consume consume listen subscribe work", "@consumer on a function, and runconsumer"),
    ("ack", "ack() of the message, or archive(message)"),
    ("nack reject", "nack(delay=60) or reject(reason) of the message"),
    (
        "requeue resend restart retry_failed",
        "replay(ids=[7]) for archived messages, redrive(ids=[7]) for those in a dead-letter queue",
    ),
    ("abort revoke", "cancel(message_id)"),
    ("remove", "cancel(message_id), or delete(message_id)"),
    ("clear delete_all empty flush", "purge()"),
    ("count depth info length qsize size stats", "metrics()"),
    ("delete_queue destroy", "drop()"),
)

#: Methods of a task.
TASK_METHODS = _by_name(
    ("apply_async delay delay_on_commit defer send send_with_options", "enqueue(7)"),
    ("configure enqueue_at enqueue_in options schedule", "using(run_after=datetime).enqueue(7)"),
    ("apply call_local run", "call(7), which runs it here and now"),
    ("bulk enqueue_batch map starmap", "enqueue_many([[7], [8]])"),
    ("chunks s si signature then", "enqueue() of the next task, at the end of this one"),
    ("AsyncResult result", "get_result(id)"),
)
