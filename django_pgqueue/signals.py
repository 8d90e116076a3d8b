"""The package's Django signals. Receivers run in the thread where the event happened, but those of
a consumer's loops in a thread of their own, ``pgqueue-announce``, one signal after another.

If a receiver raises, Django logs the error and continues. There are two exceptions: an error in a
receiver of ``messages_sent`` fails the send, and an error in a receiver of ``retention_due``
prevents the removal. ``sender`` is the queue's name, unless the table says otherwise. The
``sender`` of the last four signals is the consumer process.

======================  ==========================================  =============================
signal                  when                                        arguments
======================  ==========================================  =============================
messages_sending        messages are about to be sent; receivers    headers, count
                        may add headers to the dict
messages_sent           messages were written, in the sender's      ids
                        transaction
messages_fetched        a consumer leased messages                  count, seconds
message_started         a handler is about to run                   message
message_finished        a handler returned or raised                message, seconds, error
error_ignored           an error did not change the message's       message, error, why
                        outcome; why is "policy" (ACK and
                        ACK_FIRST), "settled" (by the handler,
                        before) or "committed" (a hook of
                        on_commit raised)
messages_completed      acks were written                           messages
messages_retried        messages wait for another attempt           messages, outcomes
messages_failed         messages were rejected, or have no          messages, outcomes
                        attempts left
messages_discarded      messages were deleted                       messages
messages_exhausted      messages failed at a read, because their    receipts
                        deliveries had run out
messages_expired        a read archived expired messages            ids
messages_released       messages were released unstarted            count
messages_interrupted    the process stopped before the handler      messages, seconds
                        ended; the messages are due again
messages_cancelled      messages that this consumer held were       messages, reasons
                        cancelled
leases_lost             another reader has leased the messages      messages
leases_extended         leases were extended                        count
leases_rescued          leases of a dead consumer were released;    count, worker
                        the sender is a loop's name, or "maintain"
database_failed         an operation failed and will be retried;    operation, error, wait,
                        the sender is the part that failed          perhaps queue
database_recovered      an operation of a loop works again; the     operation, failures,
                        sender is the loop's name                   perhaps queue
listening_stopped       LISTEN does not work, so the consumer       reason
                        polls; the sender is the database
pool_too_small          the pool has fewer connections than         size, workers, wanted
                        threads need; the sender is the database
retention_due           archived messages of a queue are about      queue, before
                        to be removed; returning False refuses,
                        a datetime keeps messages archived since
queue_maintained        a round of maintenance has ended            queue, maintained
maintenance_failed      the maintenance of a queue failed           queue, error
messages_lost           a subscription has lost messages: they      queue, count
                        left the source unread, after keep_for
schedule_failed         a schedule could not send the message of a  schedule, at, error
                        tick
schedule_ended          a declared schedule ended: no running       schedule
                        consumer declares it any more
batch_done              a batch is done, and its callback sent      batch
batch_abandoned         a batch was sealed because its time ran     batch
                        out: members may be missing
batch_failed            the callback of a batch could not be sent;  batch, error
                        it is tried again
bulk_action_ended       a bulk action is done, or failed; sent in   bulk_action
                        its last transaction; the sender is
                        BulkAction
consumer_started        a consumer process is ready                 consumer
consumer_stopping       a consumer process was asked to stop        consumer, reason
announcements_dropped   a consumer process stopped before the       consumer, count
                        receivers of ``count`` events had returned
consumer_stopped        a consumer process has stopped              consumer
======================  ==========================================  =============================
"""

from __future__ import annotations

from django.dispatch import Signal

__all__ = [
    "announcements_dropped",
    "batch_abandoned",
    "batch_done",
    "batch_failed",
    "bulk_action_ended",
    "consumer_started",
    "consumer_stopped",
    "consumer_stopping",
    "database_failed",
    "database_recovered",
    "error_ignored",
    "leases_extended",
    "leases_lost",
    "leases_rescued",
    "listening_stopped",
    "maintenance_failed",
    "message_finished",
    "message_started",
    "messages_cancelled",
    "messages_completed",
    "messages_discarded",
    "messages_exhausted",
    "messages_expired",
    "messages_failed",
    "messages_fetched",
    "messages_interrupted",
    "messages_lost",
    "messages_released",
    "messages_retried",
    "messages_sending",
    "messages_sent",
    "pool_too_small",
    "queue_maintained",
    "retention_due",
    "schedule_ended",
    "schedule_failed",
]

messages_sending: Signal = Signal()
messages_sent: Signal = Signal()
messages_fetched: Signal = Signal()
message_started: Signal = Signal()
message_finished: Signal = Signal()
error_ignored: Signal = Signal()
messages_completed: Signal = Signal()
messages_retried: Signal = Signal()
messages_failed: Signal = Signal()
messages_discarded: Signal = Signal()
messages_exhausted: Signal = Signal()
messages_expired: Signal = Signal()
messages_released: Signal = Signal()
messages_interrupted: Signal = Signal()
messages_cancelled: Signal = Signal()
database_recovered: Signal = Signal()
leases_lost: Signal = Signal()
leases_extended: Signal = Signal()
leases_rescued: Signal = Signal()
database_failed: Signal = Signal()
listening_stopped: Signal = Signal()
pool_too_small: Signal = Signal()
retention_due: Signal = Signal()
queue_maintained: Signal = Signal()
maintenance_failed: Signal = Signal()
messages_lost: Signal = Signal()
schedule_failed: Signal = Signal()
schedule_ended: Signal = Signal()
batch_done: Signal = Signal()
batch_abandoned: Signal = Signal()
batch_failed: Signal = Signal()
bulk_action_ended: Signal = Signal()
announcements_dropped: Signal = Signal()
consumer_started: Signal = Signal()
consumer_stopping: Signal = Signal()
consumer_stopped: Signal = Signal()
