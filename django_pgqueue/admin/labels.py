"""Translations of field names and help texts. The models have them in English only.

A translated name in a model would also end up in its migrations.
"""

from __future__ import annotations

from django.utils.translation import gettext_lazy, gettext_noop

from django_pgqueue.models import (
    BulkAction,
    ExportRun,
    Lake,
    Message,
    Queue,
    Rollup,
    RollupRun,
    Schedule,
)

__all__ = ["translate_fields"]

# Names and help texts of the models' fields, listed for makemessages, which finds literals only.
_KNOWN = (
    gettext_noop("id"),
    gettext_noop("name"),
    gettext_noop("visibility timeout"),
    gettext_noop("max deliveries"),
    gettext_noop("dead letter queue"),
    gettext_noop("retention"),
    gettext_noop("partition interval"),
    gettext_noop("unique window"),
    gettext_noop("limit"),
    gettext_noop("rate"),
    gettext_noop("burst"),
    gettext_noop("group limit"),
    gettext_noop("group rate"),
    gettext_noop("group burst"),
    gettext_noop("age limit"),
    gettext_noop("unlogged"),
    gettext_noop("paused"),
    gettext_noop("notify"),
    gettext_noop("priority"),
    gettext_noop("queue"),
    gettext_noop("queues"),
    gettext_noop("queue name"),
    gettext_noop("cron"),
    gettext_noop("interval"),
    gettext_noop("time zone"),
    gettext_noop("missed"),
    gettext_noop("body"),
    gettext_noop("expires"),
    gettext_noop("unique key"),
    gettext_noop("until"),
    gettext_noop("error"),
    gettext_noop("last run at"),
    gettext_noop("ended at"),
    gettext_noop("path"),
    gettext_noop("holds retention"),
    gettext_noop("exported below"),
    gettext_noop("lake"),
    gettext_noop("kind"),
    gettext_noop("state"),
    gettext_noop("rows"),
    gettext_noop("files"),
    gettext_noop("seconds"),
    gettext_noop("sent"),
    gettext_noop("completed"),
    gettext_noop("failed"),
    gettext_noop("retried"),
    gettext_noop("dead lettered"),
    gettext_noop("backlog"),
    gettext_noop("wait p95"),
    gettext_noop("run p95"),
    gettext_noop("buckets"),
    gettext_noop("removed"),
    gettext_noop("1 to 63 of A-Z a-z 0-9 _ . - ; unique whatever its case."),
    gettext_noop("Seconds a message stays hidden from others once it is read."),
    gettext_noop("How often a message is delivered before it is dead-lettered."),
    gettext_noop("Where messages go whose deliveries ran out; empty: the archive, as FAILED."),
    gettext_noop("The most messages in flight at once; empty: any number."),
    gettext_noop("The most deliveries in a time, such as 100/s or 30/m; empty: any number."),
    gettext_noop("How many the rate delivers at once after a pause; empty: one."),
    gettext_noop("The most messages of a group in flight at once; empty: one, in order."),
    gettext_noop("The most deliveries of a group in a time, such as 30/m."),
    gettext_noop("How many of a group its rate delivers at once after a pause; empty: one."),
    gettext_noop("A send wakes waiting consumers."),
    gettext_noop("Consumers leave it alone."),
    gettext_noop("Minute, hour, day of month, month, day of week, as 0 4 * * *."),
    gettext_noop("In place of cron: the time between two messages."),
    gettext_noop("Of the cron expression."),
    gettext_noop("Nothing is sent meanwhile."),
    gettext_noop("While a message holds this key, no second one is sent; empty: each is sent."),
    gettext_noop("How long a message holds the key; empty: the queue's unique window."),
    gettext_noop("The last tick that a message was sent for."),
    gettext_noop("Since then no running consumer declares it, and it sends nothing."),
    gettext_noop("Send one message for all of them"),
    gettext_noop("Send a message for each"),
    gettext_noop("Send none that is more than a minute late"),
    gettext_noop("It has started"),
    gettext_noop("It is done"),
    gettext_noop("Names of the queues it takes; empty: all."),
    gettext_noop("Retention waits until archived messages are exported here."),
    gettext_noop("The transaction before which everything is exported."),
)


def translate_fields() -> None:
    """Replace the fields' names and help texts by lazy translations."""
    for model in (ExportRun, Lake, Message, BulkAction, Queue, Rollup, RollupRun, Schedule):
        for field in model._meta.concrete_fields:
            if str(field.verbose_name) in _KNOWN:
                field.verbose_name = gettext_lazy(str(field.verbose_name))
            if str(field.help_text) in _KNOWN:
                field.help_text = gettext_lazy(str(field.help_text))
            if field.choices:
                field.choices = [
                    (key, gettext_lazy(str(label))) if str(label) in _KNOWN else (key, label)
                    for key, label in field.choices
                ]
