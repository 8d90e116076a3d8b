-- Part of groups.sql and slots.sql: the turn of a message that becomes the head of its group. It is
-- after all messages that were sent, and all heads that were chosen, before all messages to come. It
-- takes no id. The subselect runs once a statement: it opens the sequence of ids, which costs more
-- than the next value.
(SELECT coalesce(pg_sequence_last_value('{schema}.pgqueue_message_id_seq'), 0) << 20)
    + nextval('{schema}.pgqueue_turn_seq')
