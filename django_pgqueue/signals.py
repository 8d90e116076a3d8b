"""Every event, as a Django signal. Listeners run in the thread where it happened.

A listener that raises is logged by Django and stops nothing else; but one of ``messages_sent`` that
raises fails the send, and one of ``retention_due`` has refused. ``sender`` is the queue's name for
what happens to messages, and the consumer process for what happens to it.

======================  ==========================================  =============================
signal                  when                                        arguments
======================  ==========================================  =============================
messages_sending        messages are about to be sent; what is put  headers, count
                        in the dict goes with each of them
messages_sent           messages were written, in the sender's      ids
                        transaction
messages_fetched        messages were leased together               count, seconds
message_started         a handler is about to run                   message
message_finished        a handler returned or raised                message, seconds, error
messages_completed      acks were written                           messages
messages_retried        messages wait for another attempt           messages, outcomes
messages_failed         messages were rejected, or have no          messages, outcomes
                        attempt left
messages_discarded      messages were deleted                       messages
messages_exhausted      a read failed messages that had been        receipts
                        delivered as often as allowed
messages_released       messages were given back unstarted          count
leases_lost             another reader has these messages now       messages
leases_extended         leases were prolonged                       count
leases_rescued          a dead consumer's leases were given back    count, worker
database_failed         an operation failed and will be retried     operation, error, wait
listening_stopped       LISTEN does not work on a database, the     reason
                        sender: the consumer polls
pool_too_small          the pool of a database, the sender, has     size, workers, wanted
                        fewer connections than threads want
retention_due           archived messages of a queue are about      queue, before
                        to be removed; False refuses that, a
                        datetime keeps what was archived since
queue_maintained        a round of maintenance is over              queue, maintained
maintenance_failed      a consumer could not maintain a queue       queue, error
operation_ended         an operation on many messages is done, or   operation
                        failed; sent in its last transaction
consumer_started        a consumer process is ready                 consumer
consumer_stopping       it was asked to stop                        consumer, reason
consumer_stopped        it has stopped                              consumer
======================  ==========================================  =============================
"""

from __future__ import annotations

from django.dispatch import Signal

__all__ = [
    "consumer_started",
    "consumer_stopped",
    "consumer_stopping",
    "database_failed",
    "leases_extended",
    "leases_lost",
    "leases_rescued",
    "listening_stopped",
    "maintenance_failed",
    "message_finished",
    "message_started",
    "messages_completed",
    "messages_discarded",
    "messages_exhausted",
    "messages_failed",
    "messages_fetched",
    "messages_released",
    "messages_retried",
    "messages_sending",
    "messages_sent",
    "operation_ended",
    "pool_too_small",
    "queue_maintained",
    "retention_due",
]

messages_sending: Signal = Signal()
messages_sent: Signal = Signal()
messages_fetched: Signal = Signal()
message_started: Signal = Signal()
message_finished: Signal = Signal()
messages_completed: Signal = Signal()
messages_retried: Signal = Signal()
messages_failed: Signal = Signal()
messages_discarded: Signal = Signal()
messages_exhausted: Signal = Signal()
messages_released: Signal = Signal()
leases_lost: Signal = Signal()
leases_extended: Signal = Signal()
leases_rescued: Signal = Signal()
database_failed: Signal = Signal()
listening_stopped: Signal = Signal()
pool_too_small: Signal = Signal()
retention_due: Signal = Signal()
queue_maintained: Signal = Signal()
maintenance_failed: Signal = Signal()
operation_ended: Signal = Signal()
consumer_started: Signal = Signal()
consumer_stopping: Signal = Signal()
consumer_stopped: Signal = Signal()
